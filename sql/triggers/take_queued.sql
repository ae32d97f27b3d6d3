UPDATE drainmark_trigger
SET status = 'committed', sequence_id = :number
WHERE region = :region AND status = 'pending' AND order_index <= :upto
