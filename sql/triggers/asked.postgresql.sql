SELECT uri, identity_key, order_index
FROM drainmark_trigger
WHERE region = :region AND uri = ANY(:uris)
