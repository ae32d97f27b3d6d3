UPDATE drainmark_trigger
SET status = 'committed', sequence_id = :sequence_id
WHERE region = :region AND status = 'pending' AND id IN :ids
RETURNING id
