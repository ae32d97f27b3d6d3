-- Seconds since 1970 UTC.
SELECT (julianday('now') - 2440587.5) * 86400.0 AS now
