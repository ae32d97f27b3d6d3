UPDATE drainmark_cursor
SET cursor = cursor
WHERE region = :region AND source = :source
RETURNING cursor
