UPDATE drainmark_trigger
SET status = 'skipped', sequence_id = :sequence_id, reason = :reason
WHERE region = :region AND id = :id
