-- The queues of the periodic starts of a region, `REGION#START`.
SELECT region
FROM drainmark_region
WHERE substr(region, 1, :length) = :prefix
ORDER BY region
