SELECT
    drainmark_region.*,
    coalesce((SELECT max(sequence_id) FROM drainmark_trigger WHERE region = :region), 0) AS newest_id
FROM drainmark_region
WHERE region = :region
