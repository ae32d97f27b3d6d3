-- The uris whose newest input has a status, newest first.
SELECT uri
FROM drainmark_trigger AS passed
WHERE
    region = :region
    AND status = :status
    AND NOT EXISTS (
        SELECT 1
        FROM drainmark_trigger AS later
        WHERE later.region = passed.region AND later.uri = passed.uri AND later.order_index > passed.order_index
    )
ORDER BY order_index DESC
LIMIT :limit
