-- Queues of periodic starts, `REGION#START`, are no regions.
SELECT region
FROM drainmark_region
WHERE region NOT LIKE '%#%'
ORDER BY region
