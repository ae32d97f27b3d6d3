UPDATE drainmark_lease
SET heartbeat_at = :now
WHERE region = :region AND token = :token
