-- name: heartbeat
INSERT INTO {p}worker (id, host, pid) VALUES (:id, :host, :pid)
ON CONFLICT (id) DO UPDATE SET heartbeat = clock_timestamp()

-- name: mark
-- What this worker is about to run, and in the same statement which of it others still claim to
-- hold. It runs after the rows were locked: a marker that is seen now was left by a process that
-- lost its locks without withdrawing, that is, by one that died or was cut off.
WITH marked AS (
    INSERT INTO {p}hand (worker, slot, consumer, seqs, source, message_id)
    VALUES (:worker, :slot, :consumer, :seqs::bigint[], NULL, NULL)
    ON CONFLICT (worker, slot) DO UPDATE
    SET at = statement_timestamp(), consumer = excluded.consumer, seqs = excluded.seqs, source = NULL, message_id = NULL
    RETURNING 1
)
SELECT s.seq FROM {p}hand h, unnest(h.seqs) AS s(seq)
WHERE (h.worker <> :worker OR h.slot <> :slot) AND s.seq = ANY(:seqs::bigint[])
  AND EXISTS (SELECT 1 FROM marked)

-- name: mark_inline
-- Marks, or changes nothing and returns nothing: where another worker still claims to hold it, and where more deaths are
-- on record than the caller has read. A reaper moves a marker into the record in one transaction, so that one statement
-- sees the one or the other.
INSERT INTO {p}hand (worker, slot, consumer, seqs, source, message_id)
SELECT :worker, :slot, :consumer, '{{}}', :source, :message_id
WHERE NOT EXISTS (
    SELECT 1 FROM {p}hand h WHERE (h.worker <> :worker OR h.slot <> :slot)
    AND h.consumer = :consumer AND h.source = :source AND h.message_id = :message_id
) AND :deaths = (
    SELECT count(*) FROM {p}attempt a
    WHERE a.died AND a.consumer = :consumer AND a.source = :source AND a.message_id = :message_id
)
ON CONFLICT (worker, slot) DO UPDATE
SET at = statement_timestamp(), consumer = excluded.consumer, seqs = '{{}}', source = excluded.source, message_id = excluded.message_id
RETURNING slot

-- name: withdraw
UPDATE {p}hand SET seqs = '{{}}', source = NULL, message_id = NULL WHERE worker = :worker AND slot = :slot

-- name: lapsed
SELECT id FROM {p}worker WHERE heartbeat < statement_timestamp() - :seconds::float8 * interval '1 second'
ORDER BY id

-- name: reap
-- A death is moved once: whoever deletes the row counts what it held.
DELETE FROM {p}worker
WHERE id = :id AND heartbeat < statement_timestamp() - :seconds::float8 * interval '1 second'

-- name: reap_hands
DELETE FROM {p}hand WHERE worker = :id RETURNING consumer, seqs, source, message_id

-- name: orphans
-- Hands whose worker row is gone: it was reaped while a late mark was on its way. A live process
-- puts its row back with its next heartbeat, so only old ones count.
SELECT DISTINCT h.worker FROM {p}hand h
WHERE NOT EXISTS (SELECT 1 FROM {p}worker w WHERE w.id = h.worker)
  AND h.at < statement_timestamp() - :seconds::float8 * interval '1 second'
ORDER BY 1

-- name: suspect
UPDATE {p}queue SET deaths = deaths + 1, due = clock_timestamp() WHERE seq = ANY(:seqs::bigint[])

-- name: record_deaths
INSERT INTO {p}attempt (consumer, source, message_id, n, died, error_type, error, worker)
SELECT q.consumer, q.source, q.message_id,
       1 + (SELECT coalesce(max(a.n), 0) FROM {p}attempt a WHERE a.consumer = q.consumer
            AND a.source = q.source AND a.message_id = q.message_id),
       true, 'oncebox.ProcessDied', 'the process died with this message in hand', :worker
FROM {p}queue q WHERE q.seq = ANY(:seqs::bigint[])
ON CONFLICT DO NOTHING

-- name: retire
-- A worker that stops in order leaves nothing behind.
DELETE FROM {p}worker WHERE id = :id

-- name: retire_hands
DELETE FROM {p}hand WHERE worker = :id

-- name: tally
INSERT INTO {p}tally (minute, consumer, type, outcome, n)
SELECT date_trunc('minute', statement_timestamp()), r.consumer, r.type, r.outcome, r.n
FROM unnest(:consumer::text[], :type::text[], :outcome::text[], :n::bigint[]) AS r(consumer, type, outcome, n)
ORDER BY r.consumer, r.type, r.outcome
ON CONFLICT (minute, consumer, type, outcome) DO UPDATE SET n = tally.n + excluded.n
