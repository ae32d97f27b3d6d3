SELECT *
FROM drainmark_trigger
WHERE region = :region AND order_index IN :orders
ORDER BY order_index
