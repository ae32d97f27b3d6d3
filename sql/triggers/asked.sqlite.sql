-- With a long IN, SQLite would read the whole region, so the uris are the outer loop.
-- A superseded or missing input is known only by its uri: the same file may come again.
SELECT
    known.uri,
    known.order_index,
    known.status NOT IN ('superseded', 'missing') AS stands,
    CASE WHEN known.status IN ('superseded', 'missing') THEN '' ELSE known.identity_key END AS identity_key
FROM json_each(:uris) AS asked
CROSS JOIN drainmark_trigger AS known
WHERE known.region = :region AND known.uri = asked.value
