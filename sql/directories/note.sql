INSERT INTO drainmark_directory (region, uri, stamp)
VALUES (:region, :uri, :stamp)
ON CONFLICT (region, uri) DO UPDATE SET stamp = excluded.stamp
