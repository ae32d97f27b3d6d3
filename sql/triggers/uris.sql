SELECT uri
FROM drainmark_trigger
WHERE region = :region
