-- name: record_attempt
-- WHERE true keeps SQLite from reading ON CONFLICT as a join's ON.
INSERT INTO {p}attempt (consumer, source, message_id, n, at, died, error_type, error, traceback, worker)
SELECT :consumer, :source, :message_id,
    1 + (SELECT coalesce(max(n), 0) FROM {p}attempt
         WHERE consumer = :consumer AND source = :source AND message_id = :message_id),
    {now}, :died, :error_type, :error, :traceback, :worker
WHERE true
ON CONFLICT DO NOTHING

-- name: count_attempts
SELECT count(*) FILTER (WHERE NOT died), count(*) FILTER (WHERE died)
FROM {p}attempt WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: charge
UPDATE {p}queue SET attempts = attempts + 1, token = NULL, due = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE seq = :seq

-- name: bury
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, died, reason, error_type, error, traceback, attempts, lane, version, kept, seq)
VALUES (:consumer, :source, :message_id, :fingerprint, :type, :key, :payload, :headers, :content_type,
    :provenance, {now}, {now}, :reason, :error_type, :error, :traceback, :attempts, :lane, :version, :kept,
    CASE WHEN :lane IS NOT NULL AND :reason <> 'conflict' THEN (
        SELECT seq FROM {p}ledger WHERE consumer = :consumer AND source = :source AND message_id = :message_id
    ) END)
ON CONFLICT DO NOTHING

-- name: bury_queued
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, died, reason, error_type, error, traceback, attempts, seq, lane, version)
SELECT consumer, source, message_id, fingerprint, type, key, payload, headers, content_type, provenance,
    received, {now}, :reason, :error_type, :error, :traceback, attempts + :charged, seq, lane, version
FROM {p}queue WHERE seq = :seq
ON CONFLICT DO NOTHING

-- name: set_state
UPDATE {p}ledger SET state = :state
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
