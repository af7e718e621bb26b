-- name: status_queue
-- Counts stop at a cap: an operator needs "more than 100,000", not two seconds of scanning.
SELECT c.consumer, w.waiting, w.retrying, w.working, w.oldest_seconds
FROM (
    SELECT DISTINCT consumer FROM {p}tally WHERE minute > statement_timestamp() - interval '1 day'
    UNION SELECT unnest(:consumers::text[])
    UNION (WITH RECURSIVE walk AS (
        (SELECT consumer FROM {p}queue WHERE deaths = 0 ORDER BY consumer LIMIT 1)
        UNION ALL
        SELECT (SELECT q.consumer FROM {p}queue q WHERE q.deaths = 0 AND q.consumer > walk.consumer
                ORDER BY q.consumer LIMIT 1) FROM walk WHERE walk.consumer IS NOT NULL
    ) SELECT consumer FROM walk WHERE consumer IS NOT NULL)
    UNION SELECT DISTINCT consumer FROM {p}queue WHERE deaths > 0
    UNION SELECT DISTINCT consumer FROM {p}dead
) c
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE token IS NULL AND attempts = 0) AS waiting,
           count(*) FILTER (WHERE token IS NULL AND attempts > 0) AS retrying,
           count(*) FILTER (WHERE token IS NOT NULL) AS working,
           extract(epoch FROM statement_timestamp() - min(received))::float8 AS oldest_seconds
    FROM (SELECT token, attempts, received FROM {p}queue q WHERE q.consumer = c.consumer LIMIT :cap) capped
) w
ORDER BY c.consumer

-- name: status_dead
SELECT consumer, reason, count(*) FROM (SELECT consumer, reason FROM {p}dead LIMIT :cap) capped
GROUP BY consumer, reason ORDER BY consumer, reason

-- name: status_tally
SELECT consumer, outcome, sum(n)::bigint FROM {p}tally
WHERE minute > statement_timestamp() - :seconds::float8 * interval '1 second'
GROUP BY consumer, outcome ORDER BY consumer, outcome

-- name: status_workers
SELECT w.id, w.host, w.pid, extract(epoch FROM statement_timestamp() - w.heartbeat)::float8,
       coalesce((SELECT sum(coalesce(array_length(h.seqs, 1), 0) + (h.message_id IS NOT NULL)::int)
                 FROM {p}hand h WHERE h.worker = w.id), 0)::bigint
FROM {p}worker w ORDER BY w.host, w.pid, w.id

-- name: show_ledger
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state, r.body,
       q.seq, q.attempts, q.deaths, q.due, q.token IS NOT NULL, q.due > statement_timestamp(),
       q.payload, q.headers, q.content_type, q.provenance
FROM {p}ledger l
LEFT JOIN {p}result r USING (consumer, source, message_id)
LEFT JOIN {p}queue q ON q.seq = l.seq
WHERE l.message_id = :message_id AND (:consumer::text IS NULL OR l.consumer = :consumer::text)
ORDER BY l.consumer, l.source LIMIT 100

-- name: show_dead
SELECT consumer, source, message_id, type, fingerprint, received, died, reason, error_type, error, traceback,
       attempts, payload, headers, content_type, provenance
FROM {p}dead
WHERE message_id = :message_id AND (:consumer::text IS NULL OR consumer = :consumer::text)
ORDER BY consumer, source, died LIMIT 100

-- name: show_attempts
SELECT consumer, source, n, at, died, error_type, error, traceback, worker FROM {p}attempt
WHERE message_id = :message_id AND (:consumer::text IS NULL OR consumer = :consumer::text)
ORDER BY consumer, source, n LIMIT 1000
