-- A known identity is ignored, whatever its status.
INSERT INTO drainmark_trigger (
    region, output, uri, identity, identity_key, order_index, size_bytes, status, sequence_id, discovered_at, origin, reason
)
VALUES (
    :region, :output, :uri, :identity, :identity_key, :order_index, :size_bytes, :status, :sequence_id, :discovered_at,
    :origin, :reason
)
ON CONFLICT (region, uri, identity_key) DO NOTHING
