UPDATE drainmark_trigger
SET
    status = :status,
    reason = :reason,
    sequence_id = CASE WHEN :status IN ('pending', 'missing') THEN NULL ELSE sequence_id END
WHERE region = :region AND id = :id
