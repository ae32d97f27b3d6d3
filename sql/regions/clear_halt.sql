UPDATE drainmark_region
SET halt_requested = NULL
WHERE region = :region
