-- Excludes statuses instead of naming them, so the index of the sequence ids is used: the cost is that of the ids.
UPDATE drainmark_trigger
SET status = 'pending', sequence_id = NULL, reason = NULL
WHERE
    region = :region
    AND sequence_id > :sequence_id
    AND status NOT IN ('pending', 'refused', 'superseded', 'missing')
