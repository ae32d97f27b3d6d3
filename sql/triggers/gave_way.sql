-- The newest inputs at their uris that have an origin, and were changed or gone before they were read, oldest first.
SELECT *
FROM drainmark_trigger AS passed
WHERE
    region = :region
    AND origin = :origin
    AND status IN ('superseded', 'missing')
    AND NOT EXISTS (
        SELECT 1
        FROM drainmark_trigger AS later
        WHERE later.region = passed.region AND later.uri = passed.uri AND later.order_index > passed.order_index
    )
ORDER BY order_index
