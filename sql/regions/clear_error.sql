UPDATE drainmark_region
SET last_error = NULL, last_error_at = NULL
WHERE region = :region
