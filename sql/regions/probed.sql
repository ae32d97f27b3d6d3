SELECT probed
FROM drainmark_region
WHERE region = :region
