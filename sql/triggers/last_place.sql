SELECT coalesce(max(order_index), 0)
FROM drainmark_trigger
WHERE region = :region
