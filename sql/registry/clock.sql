-- Seconds since 1970 UTC.
SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision) AS now
