DELETE FROM drainmark_directory
WHERE region = :region
