UPDATE drainmark_region
SET state = :state
WHERE region = :region
