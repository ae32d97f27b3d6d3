UPDATE drainmark_region
SET
    epoch = :epoch,
    state = '',
    last_error = NULL,
    last_error_at = NULL,
    next_id = CASE WHEN next_id < :next_id THEN :next_id ELSE next_id END
WHERE region = :region AND epoch <= :epoch
