DELETE FROM drainmark_lease
WHERE region = :region
