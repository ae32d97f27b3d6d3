UPDATE drainmark_trigger
SET status = 'committed', sequence_id = :sequence_id, reason = NULL
WHERE region = :region AND order_index = :order_index
