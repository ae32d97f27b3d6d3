-- SQLite takes a long IN for dearer than to read the whole region, so the uris are the outer loop.
-- What gave way to another file, or was missing, is known by its uri alone: as it was it may come again.
SELECT
    known.uri,
    known.order_index,
    known.status NOT IN ('superseded', 'missing') AS stands,
    CASE WHEN known.status IN ('superseded', 'missing') THEN '' ELSE known.identity_key END AS identity_key
FROM json_each(:uris) AS asked
CROSS JOIN drainmark_trigger AS known
WHERE known.region = :region AND known.uri = asked.value
