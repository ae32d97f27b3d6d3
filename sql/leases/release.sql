UPDATE drainmark_lease
SET token = NULL, released_clean = :clean
WHERE region = :region AND token = :token
