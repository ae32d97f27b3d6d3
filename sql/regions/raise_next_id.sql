UPDATE drainmark_region
SET next_id = :value
WHERE region = :region AND next_id < :value
