-- SQLite takes a long IN for dearer than to read the whole region, so the uris are the outer loop.
SELECT known.uri, known.identity_key, known.order_index
FROM json_each(:uris) AS asked
CROSS JOIN drainmark_trigger AS known
WHERE known.region = :region AND known.uri = asked.value
