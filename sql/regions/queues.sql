-- The queues of the periodic starts of a region, `REGION#START`.
SELECT region
FROM drainmark_region
WHERE region LIKE :region || '#%'
ORDER BY region
