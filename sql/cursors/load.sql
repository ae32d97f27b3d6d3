SELECT cursor
FROM drainmark_cursor
WHERE region = :region AND source = :source
