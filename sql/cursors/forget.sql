DELETE FROM drainmark_cursor
WHERE region = :region
