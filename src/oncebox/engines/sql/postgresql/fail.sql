-- name: record_attempt
-- n counts on; a simultaneous writer of the same n makes this change no row, and the flow asks again.
INSERT INTO {p}attempt (consumer, source, message_id, n, died, error_type, error, traceback, worker)
SELECT :consumer, :source, :message_id, coalesce(max(n), 0) + 1, :died, :error_type, :error, :traceback, :worker
FROM {p}attempt WHERE consumer = :consumer AND source = :source AND message_id = :message_id
ON CONFLICT DO NOTHING

-- name: count_attempts
SELECT count(*) FILTER (WHERE NOT died), count(*) FILTER (WHERE died)
FROM {p}attempt WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: charge
UPDATE {p}queue SET attempts = attempts + 1, token = NULL,
    due = clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE seq = :seq

-- name: bury
-- Idempotent: the same conflicting payload delivered again is the same dead row. An inline message of a
-- lane gets its place now, before whatever is stored behind it.
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, reason, error_type, error, traceback, attempts, lane, version, kept, seq)
VALUES (:consumer, :source, :message_id, :fingerprint, :type, :key, :payload, :headers, :content_type,
    :provenance, statement_timestamp(), :reason, :error_type, :error, :traceback, :attempts, :lane, :version, :kept,
    CASE WHEN :lane::text IS NOT NULL AND :reason::text <> 'conflict' THEN nextval('{p}queue_seq') END)
ON CONFLICT DO NOTHING

-- name: bury_queued
-- The queue row is deleted by `finish` right after, in the same transaction.
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, reason, error_type, error, traceback, attempts, seq, lane, version)
SELECT consumer, source, message_id, fingerprint, type, key, payload, headers, content_type, provenance,
    received, :reason, :error_type, :error, :traceback, attempts + :charged::int, seq, lane, version
FROM {p}queue WHERE seq = :seq
ON CONFLICT DO NOTHING

-- name: set_state
UPDATE {p}ledger SET state = :state
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
