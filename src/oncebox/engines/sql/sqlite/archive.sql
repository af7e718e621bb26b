-- name: sweep_look
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state
{past}

-- name: archive_sizes
-- each: run once per row.
SELECT :consumer, :source, :message_id,
       coalesce((SELECT length(body) FROM {p}result
                 WHERE consumer = :consumer AND source = :source AND message_id = :message_id), 0)
       + coalesce((SELECT length(payload) + length(headers) FROM {p}kept
                   WHERE consumer = :consumer AND source = :source AND message_id = :message_id), 0)

-- name: archive_extras
-- each: run once per row.
SELECT l.consumer, l.source, l.message_id, r.body, p.seq, p.key, p.payload, p.headers, p.content_type, p.provenance
FROM {p}ledger l
LEFT JOIN {p}result r ON r.consumer = l.consumer AND r.source = l.source AND r.message_id = l.message_id
LEFT JOIN {p}kept p ON p.consumer = l.consumer AND p.source = l.source AND p.message_id = l.message_id
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id
  AND (r.body IS NOT NULL OR p.payload IS NOT NULL)

-- name: archive_known
-- each: run once per row.
SELECT consumer, source, message_id FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: archive_restore
-- each: run once per row.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished, state)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, :received, {now}, :state)
ON CONFLICT DO NOTHING
RETURNING consumer, source, message_id

-- name: archive_restore_results
-- each: run once per row.
INSERT INTO {p}result (consumer, source, message_id, body)
VALUES (:consumer, :source, :message_id, :body)
ON CONFLICT DO NOTHING

-- name: archive_restore_kept
-- each: run once per row.
-- An old place that is free is taken again; AUTOINCREMENT goes on after the highest there ever was.
INSERT INTO {p}kept (consumer, source, message_id, seq, key, payload, headers, content_type, provenance)
VALUES (:consumer, :source, :message_id,
        CASE WHEN NOT EXISTS (SELECT 1 FROM {p}kept WHERE seq = :place) THEN :place END,
        :key, :payload, :headers, :content_type, :provenance)
ON CONFLICT DO NOTHING

-- name: forget
-- each: run once per row.
INSERT INTO {p}forgotten (consumer, received) VALUES (:consumer, :received)
ON CONFLICT (consumer) DO UPDATE SET received = max(received, excluded.received)

-- name: forgotten
SELECT received / 1000000.0 FROM {p}forgotten WHERE consumer = :consumer
