-- What gave way to another file, or was missing, is known by its uri alone: as it was it may come again.
SELECT
    uri,
    order_index,
    status NOT IN ('superseded', 'missing') AS stands,
    CASE WHEN status IN ('superseded', 'missing') THEN '' ELSE identity_key END AS identity_key
FROM drainmark_trigger
WHERE region = :region AND uri = ANY(:uris)
