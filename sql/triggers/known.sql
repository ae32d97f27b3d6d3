SELECT uri, identity_key
FROM drainmark_trigger
WHERE region = :region
ORDER BY order_index
