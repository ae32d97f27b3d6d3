SELECT uri, stamp
FROM drainmark_directory
WHERE region = :region
