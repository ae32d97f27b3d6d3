SELECT *
FROM drainmark_trigger
WHERE region = :region AND uri = :uri
ORDER BY order_index
