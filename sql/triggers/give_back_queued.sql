UPDATE drainmark_trigger
SET status = 'pending', sequence_id = NULL
WHERE region = :region AND status = 'committed' AND order_index > :after
