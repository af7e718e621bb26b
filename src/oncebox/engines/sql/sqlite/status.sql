-- name: status_queue
-- Differs by necessity: SQLite has no LATERAL, so the rows of every consumer are capped together.
WITH RECURSIVE walk(consumer) AS (
    SELECT (SELECT consumer FROM {p}ledger ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT l.consumer FROM {p}ledger l WHERE l.consumer > walk.consumer ORDER BY l.consumer LIMIT 1)
    FROM walk WHERE walk.consumer IS NOT NULL
), hands(seq) AS (
    SELECT DISTINCT s.value FROM {p}hand h, json_each(h.seqs) s
), queued AS (
    SELECT q.consumer, q.received, q.attempts + q.deaths AS failures,
           h.seq IS NOT NULL OR (q.token IS NOT NULL AND q.due > {now}) AS in_work
    FROM (SELECT seq, consumer, received, due, attempts, deaths, token FROM {p}queue ORDER BY seq LIMIT :cap) q
    LEFT JOIN hands h ON h.seq = q.seq
)
SELECT c.consumer,
       coalesce(sum(NOT q.in_work AND q.failures = 0), 0),
       coalesce(sum(NOT q.in_work AND q.failures > 0), 0),
       coalesce(sum(q.in_work), 0)
       + (SELECT count(*) FROM {p}hand h WHERE h.consumer = c.consumer AND h.message_id IS NOT NULL),
       ({now} - min(q.received)) / 1000000.0
FROM (
    SELECT consumer FROM walk WHERE consumer IS NOT NULL
    UNION SELECT DISTINCT consumer FROM {p}tally WHERE minute > {now} - 86400000000
    UNION SELECT value FROM json_each(:consumers)
) c
LEFT JOIN queued q ON q.consumer = c.consumer
GROUP BY c.consumer ORDER BY c.consumer

-- name: status_types
-- What waits for a consumer, by type; the first rows stand for the rest where there are very many.
SELECT type, count(*) FROM (SELECT type FROM {p}queue WHERE consumer = :consumer LIMIT :cap) q
GROUP BY type ORDER BY count(*) DESC, type LIMIT 100

-- name: status_known
SELECT c.value, (SELECT count(*) FROM (SELECT 1 FROM {p}ledger l WHERE l.consumer = c.value LIMIT :cap))
FROM json_each(:consumers) c

-- name: status_dead
SELECT consumer, reason, count(*) FROM (SELECT consumer, reason FROM {p}dead LIMIT :cap)
GROUP BY consumer, reason ORDER BY consumer, reason

-- name: status_unfinished
SELECT consumer, count(*) FROM (
    SELECT l.consumer FROM {p}ledger l WHERE l.state = 1 AND NOT {buried} LIMIT :cap
)
GROUP BY consumer ORDER BY consumer

-- name: status_tally
SELECT consumer, outcome, sum(n),
       ({now} - (({now} - CAST(:seconds * 1000000 AS INTEGER)) / 60000000 + 1) * 60000000) / 1000000.0
FROM {p}tally
WHERE minute > {now} - CAST(:seconds * 1000000 AS INTEGER)
GROUP BY consumer, outcome ORDER BY consumer, outcome

-- name: status_workers
SELECT w.id, w.host, w.pid, ({now} - w.started) / 1000000.0, ({now} - w.heartbeat) / 1000000.0,
       (SELECT count(*) FROM {p}hand h, json_each(h.seqs) s JOIN {p}queue q ON q.seq = s.value
        WHERE h.worker = w.id)
       + (SELECT count(*) FROM {p}hand h WHERE h.worker = w.id AND h.message_id IS NOT NULL)
FROM {p}worker w ORDER BY w.host, w.pid, w.id

-- name: show_scopes
-- Differs by necessity: there is no LATERAL, and a comparison of pairs seeks by its first column only;
-- so the next pair is the next source of the same consumer, else the first one of the next consumer.
-- Any text lies between '' and an empty blob.
WITH RECURSIVE ledgers(consumer, source) AS (
    SELECT * FROM (SELECT consumer, source FROM {p}ledger
                   WHERE consumer BETWEEN coalesce(:consumer, '') AND coalesce(:consumer, x'')
                   ORDER BY consumer, source LIMIT 1)
    UNION ALL
    SELECT l.consumer, l.source FROM ledgers w JOIN {p}ledger l ON l.seq = coalesce(
        (SELECT n.seq FROM {p}ledger n WHERE n.consumer = w.consumer AND n.source > w.source
         ORDER BY n.source LIMIT 1),
        (SELECT n.seq FROM {p}ledger n WHERE :consumer IS NULL AND n.consumer > w.consumer
         ORDER BY n.consumer, n.source LIMIT 1))
)
SELECT consumer, source FROM ledgers
UNION SELECT DISTINCT consumer, source FROM {p}attempt
WHERE consumer BETWEEN coalesce(:consumer, '') AND coalesce(:consumer, x'')
ORDER BY consumer, source LIMIT :cap

-- name: show_ledger
-- each: run once per scope.
SELECT l.consumer, l.source, l.type, l.received, l.finished, l.state, l.fingerprint, r.body,
       q.seq, q.attempts, q.deaths, q.due, q.payload, q.headers, q.content_type, q.provenance,
       q.token IS NOT NULL AND q.due > {now}
       OR EXISTS (SELECT 1 FROM {p}hand h, json_each(h.seqs) s WHERE s.value = q.seq),
       q.lane, q.version, q.turn, q.received, l.again
FROM {p}ledger l
LEFT JOIN {p}result r USING (consumer, source, message_id)
LEFT JOIN {p}queue q ON q.seq = l.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: show_lane
SELECT k.last, k.blocked, k.source, k.message_id, k.gap,
       (SELECT q.message_id FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key AND q.turn = 1),
       (SELECT count(*) FROM (
            SELECT 1 FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key
              AND (coalesce(q.version, 0), q.seq) < (coalesce(:version, 0), :seq) LIMIT :cap))
FROM {p}key k WHERE k.consumer = :consumer AND k.key = :lane

-- name: show_dead
-- each: run once per scope.
SELECT consumer, source, type, received, died, reason, error_type, error, traceback,
       attempts, fingerprint, payload, headers, content_type, provenance, lane, version
FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
ORDER BY died LIMIT 100

-- name: show_attempts
-- each: run once per scope.
SELECT consumer, source, n, at, died, error_type, error, traceback, worker FROM {p}attempt
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
ORDER BY n LIMIT 1000
