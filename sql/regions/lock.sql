UPDATE drainmark_region
SET epoch = epoch
WHERE region = :region
