-- A superseded or missing input is known only by its uri: the same file may come again.
SELECT
    uri,
    order_index,
    status NOT IN ('superseded', 'missing') AS stands,
    CASE WHEN status IN ('superseded', 'missing') THEN '' ELSE identity_key END AS identity_key
FROM drainmark_trigger
WHERE region = :region AND uri = ANY(:uris)
