-- An update, not a select: on PostgreSQL it also locks the region's row until the transaction ends.
UPDATE drainmark_region
SET epoch = epoch
WHERE region = :region AND epoch = :epoch
