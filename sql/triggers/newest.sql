SELECT *
FROM drainmark_trigger
WHERE region = :region
ORDER BY order_index DESC
LIMIT 1
