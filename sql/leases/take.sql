-- Compares with the lease as it was read, so only one of two takers wins.
UPDATE drainmark_lease
SET
    token = :token,
    epoch = NULL,
    host = :host,
    boot_id = :boot_id,
    pid = :pid,
    process_started = :process_started,
    run_id = :run_id,
    acquired_at = :now,
    heartbeat_at = :now,
    released_clean = NULL
WHERE region = :region AND coalesce(token, '') = :seen_token AND heartbeat_at = :seen_heartbeat
