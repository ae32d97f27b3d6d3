DELETE FROM drainmark_region
WHERE region = :region
