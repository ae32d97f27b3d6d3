UPDATE drainmark_region
SET probed = :probed
WHERE region = :region
