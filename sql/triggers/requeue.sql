-- By the statuses that it has not, so that the index of the sequence ids is taken: a rewind costs what it takes back.
UPDATE drainmark_trigger
SET status = 'pending', sequence_id = NULL, reason = NULL
WHERE
    region = :region
    AND sequence_id > :sequence_id
    AND status NOT IN ('pending', 'refused', 'superseded', 'missing')
