INSERT INTO drainmark_cursor (region, source, cursor)
VALUES (:region, :source, :cursor)
ON CONFLICT (region, source) DO UPDATE SET cursor = excluded.cursor
