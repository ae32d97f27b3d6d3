DELETE FROM drainmark_trigger
WHERE region = :region
