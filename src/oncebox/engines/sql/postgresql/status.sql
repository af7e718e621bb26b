-- name: status_queue
-- Every consumer that is known here, with what waits for it. The ledger is walked from consumer to
-- consumer along its key, not scanned. Counts stop at a cap: an operator needs "more than 100,000",
-- not two seconds of counting. A marker may outlive its rows, so it counts only where it meets one.
WITH RECURSIVE walk AS (
    (SELECT consumer FROM {p}ledger ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT l.consumer FROM {p}ledger l WHERE l.consumer > walk.consumer ORDER BY l.consumer LIMIT 1)
    FROM walk WHERE walk.consumer IS NOT NULL
), hands AS (
    SELECT DISTINCT unnest(seqs) AS seq FROM {p}hand
)
SELECT c.consumer, w.waiting, w.retrying,
       w.working + (SELECT count(*) FROM {p}hand h WHERE h.consumer = c.consumer AND h.message_id IS NOT NULL),
       w.oldest_seconds
FROM (
    SELECT consumer FROM walk WHERE consumer IS NOT NULL
    UNION SELECT DISTINCT consumer FROM {p}tally WHERE minute > statement_timestamp() - interval '1 day'
    UNION SELECT unnest(:consumers::text[])
) c
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE NOT in_work AND failures = 0) AS waiting,
           count(*) FILTER (WHERE NOT in_work AND failures > 0) AS retrying,
           count(*) FILTER (WHERE in_work) AS working,
           extract(epoch FROM statement_timestamp() - min(received))::float8 AS oldest_seconds
    FROM (
        SELECT q.received, q.attempts + q.deaths AS failures,
               h.seq IS NOT NULL OR (q.token IS NOT NULL AND q.due > statement_timestamp()) AS in_work
        FROM (
            (SELECT seq, received, due, attempts, deaths, token FROM {p}queue
             WHERE consumer = c.consumer AND deaths = 0 AND turn ORDER BY due LIMIT :cap)
            UNION ALL
            (SELECT seq, received, due, attempts, deaths, token FROM {p}queue
             WHERE consumer = c.consumer AND deaths > 0 AND turn ORDER BY due LIMIT :cap)
            UNION ALL
            (SELECT seq, received, due, attempts, deaths, token FROM {p}queue
             WHERE consumer = c.consumer AND lane IS NOT NULL AND NOT turn LIMIT :cap)
        ) q LEFT JOIN hands h USING (seq)
    ) rows
) w
ORDER BY c.consumer

-- name: status_types
-- What waits for a consumer, by type; the first rows stand for the rest where there are very many.
SELECT type, count(*) FROM (SELECT type FROM {p}queue WHERE consumer = :consumer LIMIT :cap) q
GROUP BY type ORDER BY count(*) DESC, type LIMIT 100

-- name: status_known
-- How many messages are on record, which is all there is to tell of the guard's consumers: they write no tallies.
SELECT c.consumer, (SELECT count(*) FROM (SELECT 1 FROM {p}ledger l WHERE l.consumer = c.consumer LIMIT :cap) capped)
FROM unnest(:consumers::text[]) AS c(consumer)

-- name: status_dead
-- Capped per consumer, so that one consumer's thousands do not hide another's three.
WITH RECURSIVE walk AS (
    (SELECT consumer FROM {p}dead ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT d.consumer FROM {p}dead d WHERE d.consumer > walk.consumer ORDER BY d.consumer LIMIT 1)
    FROM walk WHERE walk.consumer IS NOT NULL
)
SELECT c.consumer, d.reason, d.n
FROM (SELECT consumer FROM walk WHERE consumer IS NOT NULL) c
CROSS JOIN LATERAL (
    SELECT reason, count(*) AS n
    FROM (SELECT reason FROM {p}dead WHERE consumer = c.consumer ORDER BY died DESC LIMIT :cap) capped
    GROUP BY reason
) d
ORDER BY c.consumer, d.reason

-- name: status_unfinished
-- What the guard left unfinished. Where another delivery came to the app since, it is among the dead.
WITH RECURSIVE walk AS (
    (SELECT consumer FROM {p}ledger WHERE state = 1 ORDER BY consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT l.consumer FROM {p}ledger l WHERE l.state = 1 AND l.consumer > walk.consumer
            ORDER BY l.consumer LIMIT 1)
    FROM walk WHERE walk.consumer IS NOT NULL
)
SELECT c.consumer, u.n
FROM (SELECT consumer FROM walk WHERE consumer IS NOT NULL) c
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM (
        SELECT 1 FROM {p}ledger l
        WHERE l.state = 1 AND l.consumer = c.consumer AND NOT {buried}
        LIMIT :cap
    ) capped
) u
WHERE u.n > 0 ORDER BY c.consumer

-- name: status_tally
-- Whole minutes and the current one; the last column says how many seconds that is.
SELECT consumer, outcome, sum(n)::bigint,
       extract(epoch FROM statement_timestamp() - date_trunc('minute', statement_timestamp()
           - :seconds::float8 * interval '1 second') - interval '1 minute')::float8
FROM {p}tally
WHERE minute > statement_timestamp() - :seconds::float8 * interval '1 second'
GROUP BY consumer, outcome ORDER BY consumer, outcome

-- name: status_workers
-- What is in hand is counted where the marker meets a row: markers of finished work are left lying.
SELECT w.id, w.host, w.pid, extract(epoch FROM statement_timestamp() - w.started)::float8,
       extract(epoch FROM statement_timestamp() - w.heartbeat)::float8,
       (SELECT count(*) FROM {p}hand h, unnest(h.seqs) AS s(seq) JOIN {p}queue q USING (seq) WHERE h.worker = w.id)
       + (SELECT count(*) FROM {p}hand h WHERE h.worker = w.id AND h.message_id IS NOT NULL)
FROM {p}worker w ORDER BY w.host, w.pid, w.id

-- name: show_scopes
-- Which (consumer, source) pairs there are to look under: the keys lead with them, so walking the
-- pairs and asking for each is quick where a search for the id alone would read every row.
WITH RECURSIVE ledgers AS (
    (SELECT consumer, source FROM {p}ledger
     WHERE :consumer::text IS NULL OR consumer = :consumer::text ORDER BY consumer, source LIMIT 1)
    UNION ALL
    SELECT n.consumer, n.source FROM ledgers w CROSS JOIN LATERAL (
        SELECT l.consumer, l.source FROM {p}ledger l WHERE (l.consumer, l.source) > (w.consumer, w.source)
          AND (:consumer::text IS NULL OR l.consumer = :consumer::text)
        ORDER BY l.consumer, l.source LIMIT 1) n
), attempts AS (
    (SELECT consumer, source FROM {p}attempt
     WHERE :consumer::text IS NULL OR consumer = :consumer::text ORDER BY consumer, source LIMIT 1)
    UNION ALL
    SELECT n.consumer, n.source FROM attempts w CROSS JOIN LATERAL (
        SELECT a.consumer, a.source FROM {p}attempt a WHERE (a.consumer, a.source) > (w.consumer, w.source)
          AND (:consumer::text IS NULL OR a.consumer = :consumer::text)
        ORDER BY a.consumer, a.source LIMIT 1) n
)
SELECT consumer, source FROM ledgers UNION SELECT consumer, source FROM attempts
ORDER BY consumer, source LIMIT :cap

-- name: show_ledger
SELECT l.consumer, l.source, l.type, l.received, l.finished, l.state, l.fingerprint, l.body,
       q.seq, q.attempts, q.deaths, q.due, q.payload, q.headers, q.content_type, q.provenance,
       q.token IS NOT NULL AND q.due > statement_timestamp()
       OR EXISTS (SELECT 1 FROM {p}hand h WHERE q.seq = ANY(h.seqs)),
       q.lane, q.version, q.turn, q.received, l.again
FROM unnest(:consumer::text[], :source::text[]) AS s(consumer, source)
CROSS JOIN LATERAL (
    SELECT l.*, r.body FROM {p}ledger l LEFT JOIN {p}result r USING (consumer, source, message_id)
    WHERE l.consumer = s.consumer AND l.source = s.source AND l.message_id = :message_id LIMIT 1
) l
LEFT JOIN {p}queue q ON q.seq = l.seq
ORDER BY l.consumer, l.source

-- name: show_lane
-- Where an ordered message stands in its lane: what blocks it, who has the turn, how many are before it.
SELECT k.last, k.blocked, k.source, k.message_id, k.gap,
       (SELECT q.message_id FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key AND q.turn),
       (SELECT count(*) FROM (
            SELECT 1 FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key
              AND (coalesce(q.version, 0), q.seq) < (coalesce(:version::bigint, 0), :seq::bigint) LIMIT :cap) before)
FROM {p}key k WHERE k.consumer = :consumer AND k.key = :lane

-- name: show_dead
SELECT d.consumer, d.source, d.type, d.received, d.died, d.reason, d.error_type, d.error, d.traceback,
       d.attempts, d.fingerprint, d.payload, d.headers, d.content_type, d.provenance, d.lane, d.version
FROM unnest(:consumer::text[], :source::text[]) AS s(consumer, source)
CROSS JOIN LATERAL (
    SELECT * FROM {p}dead d
    WHERE d.consumer = s.consumer AND d.source = s.source AND d.message_id = :message_id LIMIT 100
) d
ORDER BY d.consumer, d.source, d.died

-- name: show_attempts
SELECT a.consumer, a.source, a.n, a.at, a.died, a.error_type, a.error, a.traceback, a.worker
FROM unnest(:consumer::text[], :source::text[]) AS s(consumer, source)
CROSS JOIN LATERAL (
    SELECT * FROM {p}attempt a
    WHERE a.consumer = s.consumer AND a.source = s.source AND a.message_id = :message_id ORDER BY a.n LIMIT 1000
) a
ORDER BY a.consumer, a.source, a.n
