UPDATE drainmark_region
SET halt_requested = :reason
WHERE region = :region
