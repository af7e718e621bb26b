-- name: status_queue
SELECT c.consumer,
       coalesce(sum(q.seq IS NOT NULL AND q.token IS NULL AND q.attempts = 0), 0),
       coalesce(sum(q.seq IS NOT NULL AND q.token IS NULL AND q.attempts > 0), 0),
       coalesce(sum(q.token IS NOT NULL), 0),
       ({now} - min(q.received)) / 1000000.0
FROM (
    SELECT DISTINCT consumer FROM {p}tally WHERE minute > {now} - 86400000000
    UNION SELECT value FROM json_each(:consumers)
    UNION SELECT DISTINCT consumer FROM {p}queue
    UNION SELECT DISTINCT consumer FROM {p}dead
) c
LEFT JOIN (SELECT seq, consumer, token, attempts, received FROM {p}queue LIMIT :cap) q ON q.consumer = c.consumer
GROUP BY c.consumer ORDER BY c.consumer

-- name: status_dead
SELECT consumer, reason, count(*) FROM (SELECT consumer, reason FROM {p}dead LIMIT :cap)
GROUP BY consumer, reason ORDER BY consumer, reason

-- name: status_tally
SELECT consumer, outcome, sum(n) FROM {p}tally
WHERE minute > {now} - CAST(:seconds * 1000000 AS INTEGER)
GROUP BY consumer, outcome ORDER BY consumer, outcome

-- name: status_workers
SELECT w.id, w.host, w.pid, ({now} - w.heartbeat) / 1000000.0,
       coalesce((SELECT sum(json_array_length(h.seqs) + (h.message_id IS NOT NULL))
                 FROM {p}hand h WHERE h.worker = w.id), 0)
FROM {p}worker w ORDER BY w.host, w.pid, w.id

-- name: show_ledger
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state, r.body,
       q.seq, q.attempts, q.deaths, q.due, q.token IS NOT NULL, q.due > {now},
       q.payload, q.headers, q.content_type, q.provenance
FROM {p}ledger l
LEFT JOIN {p}result r USING (consumer, source, message_id)
LEFT JOIN {p}queue q ON q.seq = l.seq
WHERE l.message_id = :message_id AND (:consumer IS NULL OR l.consumer = :consumer)
ORDER BY l.consumer, l.source LIMIT 100

-- name: show_dead
SELECT consumer, source, message_id, type, fingerprint, received, died, reason, error_type, error, traceback,
       attempts, payload, headers, content_type, provenance
FROM {p}dead
WHERE message_id = :message_id AND (:consumer IS NULL OR consumer = :consumer)
ORDER BY consumer, source, died LIMIT 100

-- name: show_attempts
SELECT consumer, source, n, at, died, error_type, error, traceback, worker FROM {p}attempt
WHERE message_id = :message_id AND (:consumer IS NULL OR consumer = :consumer)
ORDER BY consumer, source, n LIMIT 1000
