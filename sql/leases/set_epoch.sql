UPDATE drainmark_lease
SET epoch = :epoch
WHERE region = :region AND token = :token
