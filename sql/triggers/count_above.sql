SELECT count(*)
FROM drainmark_trigger
WHERE region = :region AND order_index > :last
