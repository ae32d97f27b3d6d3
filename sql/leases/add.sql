INSERT INTO drainmark_lease (
    region, host, boot_id, pid, process_started, run_id, acquired_at, heartbeat_at
)
VALUES (:region, '', '', 0, '', '', 0, 0)
ON CONFLICT (region) DO NOTHING
