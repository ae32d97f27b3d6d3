INSERT INTO drainmark_region (region, next_id, epoch, state, probed)
VALUES (:region, 1, 0, '', '{}')
ON CONFLICT (region) DO NOTHING
