SELECT count(*) AS waiting
FROM drainmark_trigger
WHERE region = :region AND status = 'pending'
