UPDATE drainmark_region
SET next_id = next_id + :count
WHERE region = :region
RETURNING next_id
