SELECT *
FROM drainmark_region
WHERE region = :region
