-- name: heartbeat
INSERT INTO {p}worker (id, host, pid, started, heartbeat) VALUES (:id, :host, :pid, {now}, {now})
ON CONFLICT (id) DO UPDATE SET heartbeat = {now}

-- name: mark_inline
INSERT INTO {p}hand (worker, slot, consumer, seqs, source, message_id, at)
SELECT :worker, :slot, :consumer, '[]', :source, :message_id, {now}
WHERE NOT EXISTS (
    SELECT 1 FROM {p}hand h WHERE (h.worker <> :worker OR h.slot <> :slot)
    AND h.consumer = :consumer AND h.source = :source AND h.message_id = :message_id
) AND :deaths = (
    SELECT count(*) FROM {p}attempt a
    WHERE a.died AND a.consumer = :consumer AND a.source = :source AND a.message_id = :message_id
)
ON CONFLICT (worker, slot) DO UPDATE
SET at = excluded.at, consumer = excluded.consumer, seqs = '[]', source = excluded.source, message_id = excluded.message_id
RETURNING slot

-- name: withdraw
UPDATE {p}hand SET seqs = '[]', source = NULL, message_id = NULL WHERE worker = :worker AND slot = :slot

-- name: lapsed
SELECT id FROM {p}worker WHERE heartbeat < {now} - CAST(:seconds * 1000000 AS INTEGER) ORDER BY id

-- name: reap
DELETE FROM {p}worker WHERE id = :id AND heartbeat < {now} - CAST(:seconds * 1000000 AS INTEGER)

-- name: reap_hands
DELETE FROM {p}hand WHERE worker = :id RETURNING consumer, seqs, source, message_id

-- name: orphans
SELECT DISTINCT h.worker FROM {p}hand h
WHERE NOT EXISTS (SELECT 1 FROM {p}worker w WHERE w.id = h.worker)
  AND h.at < {now} - CAST(:seconds * 1000000 AS INTEGER)
ORDER BY 1

-- name: suspect
UPDATE {p}queue SET deaths = deaths + 1, due = {now} WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: record_deaths
INSERT INTO {p}attempt (consumer, source, message_id, n, at, died, error_type, error, worker)
SELECT q.consumer, q.source, q.message_id,
       1 + (SELECT coalesce(max(a.n), 0) FROM {p}attempt a WHERE a.consumer = q.consumer
            AND a.source = q.source AND a.message_id = q.message_id),
       {now}, 1, 'oncebox.ProcessDied', 'the process died with this message in hand', :worker
FROM {p}queue q WHERE q.seq IN (SELECT value FROM json_each(:seqs))
ON CONFLICT DO NOTHING

-- name: retire
DELETE FROM {p}worker WHERE id = :id

-- name: retire_hands
DELETE FROM {p}hand WHERE worker = :id

-- name: tally
-- each: run once per row.
INSERT INTO {p}tally (minute, consumer, type, outcome, n)
VALUES ({now} / 60000000 * 60000000, :consumer, :type, :outcome, :n)
ON CONFLICT (minute, consumer, type, outcome) DO UPDATE SET n = n + excluded.n
