SELECT *
FROM drainmark_trigger
WHERE region = :region AND status = 'pending' AND order_index > :after
ORDER BY order_index
LIMIT :limit
