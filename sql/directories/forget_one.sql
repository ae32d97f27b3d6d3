DELETE FROM drainmark_directory
WHERE region = :region AND uri = :uri
