-- A known identity is ignored, unless it was superseded or missing: then it is there again.
INSERT INTO drainmark_trigger (
    region, output, uri, identity, identity_key, order_index, size_bytes, status, sequence_id, discovered_at, origin, reason
)
VALUES (
    :region, :output, :uri, :identity, :identity_key, :order_index, :size_bytes, :status, :sequence_id, :discovered_at,
    :origin, :reason
)
ON CONFLICT (region, uri, identity_key) DO UPDATE SET
    identity = excluded.identity,
    order_index = excluded.order_index,
    status = excluded.status,
    sequence_id = excluded.sequence_id,
    discovered_at = excluded.discovered_at,
    origin = excluded.origin,
    reason = excluded.reason
WHERE drainmark_trigger.status IN ('superseded', 'missing')
