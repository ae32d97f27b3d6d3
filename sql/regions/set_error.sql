UPDATE drainmark_region
SET last_error = :error, last_error_at = :now
WHERE region = :region
