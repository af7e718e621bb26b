-- name: key_touch
INSERT INTO {p}key (consumer, key, last, touched)
SELECT :consumer, value, :last, {now} FROM json_each(:keys) WHERE true
ON CONFLICT DO NOTHING

-- name: key_lock
-- There is one writer, so that this only reads.
SELECT key, last, skipped, blocked IS NOT NULL FROM {p}key
WHERE consumer = :consumer AND key IN (SELECT value FROM json_each(:keys))
ORDER BY key

-- name: key_backlog
SELECT DISTINCT lane FROM {p}queue
WHERE consumer = :consumer AND lane IS NOT NULL AND lane IN (SELECT value FROM json_each(:keys))

-- name: key_start
UPDATE {p}key SET last = :last WHERE consumer = :consumer AND key = :key AND last IS NULL

-- name: key_moved
-- each: run once per row.
UPDATE {p}key SET touched = {now},
    last = CASE WHEN last IS NULL OR :version = last + 1 THEN :version ELSE last END,
    skipped = (SELECT json_group_array(value) FROM json_each(skipped) WHERE value <> :version)
WHERE consumer = :consumer AND key = :key

-- name: key_block
-- Who blocks first stays named: what is behind it can be refused while it waits, and must not stand for it.
UPDATE {p}key SET blocked = {now}, source = :source, message_id = :message_id
WHERE consumer = :consumer AND key = :key AND blocked IS NULL

-- name: key_unblock
UPDATE {p}key SET blocked = NULL, source = NULL, message_id = NULL
WHERE consumer = :consumer AND key = :key AND blocked IS NOT NULL

-- name: key_redriven
-- A dead message is back in line: it no longer blocks, and its version is handled although it is past. What was
-- refused while it blocked blocks now; what is ahead of its turn is missing when that comes.
UPDATE {p}key AS k SET
    (blocked, source, message_id) = (
        SELECT CASE WHEN n.message_id IS NOT NULL THEN k.blocked END, n.source, n.message_id
        FROM (
            SELECT k.source AS source, k.message_id AS message_id
            WHERE NOT (k.source = :source AND k.message_id = :message_id)
            UNION ALL
            SELECT * FROM (
                SELECT d.source, d.message_id FROM {p}dead d
                WHERE k.source = :source AND k.message_id = :message_id
                  AND d.consumer = k.consumer AND d.died >= k.blocked AND d.lane = k.key
                  AND d.reason NOT IN ('conflict', 'unfinished') AND (d.version IS NULL OR d.version <= k.last)
                  AND NOT (d.source = :source AND d.message_id = :message_id)
                ORDER BY d.died, d.seq LIMIT 1
            )
        ) n
    ),
    last = coalesce(last, :version - 1),
    skipped = CASE WHEN :version <= last AND :version NOT IN (SELECT value FROM json_each(skipped))
                   THEN json_insert(skipped, '$[#]', :version) ELSE skipped END
WHERE consumer = :consumer AND key = :key

-- name: key_stale
-- CROSS JOIN: lanes first, whatever the planner thinks; else it reads every lane's backlog.
UPDATE {p}ledger SET state = 3 WHERE seq IN (
    SELECT q.seq FROM {p}key k CROSS JOIN {p}queue q ON q.consumer = k.consumer AND q.lane = k.key
    WHERE k.consumer = :consumer AND k.key IN (SELECT value FROM json_each(:keys)) AND q.lane IS NOT NULL
      AND q.version <= k.last AND q.turn = 0
      AND q.version NOT IN (SELECT value FROM json_each(k.skipped))
)

-- name: key_drop
DELETE FROM {p}queue WHERE seq IN (
    SELECT q.seq FROM {p}key k CROSS JOIN {p}queue q ON q.consumer = k.consumer AND q.lane = k.key
    WHERE k.consumer = :consumer AND k.key IN (SELECT value FROM json_each(:keys)) AND q.lane IS NOT NULL
      AND q.version <= k.last AND q.turn = 0
      AND q.version NOT IN (SELECT value FROM json_each(k.skipped))
)

-- name: key_pass
UPDATE {p}queue SET turn = 1 WHERE seq IN (
    SELECT coalesce(
        (SELECT n.seq FROM {p}queue n
         WHERE n.consumer = :consumer AND n.lane IS NOT NULL AND n.lane = k.key AND n.version IS NULL
         ORDER BY n.seq LIMIT 1),
        CASE WHEN k.skipped <> '[]' THEN
            (SELECT n.seq FROM {p}queue n
             WHERE n.consumer = :consumer AND n.lane IS NOT NULL AND n.lane = k.key
               AND n.version IN (SELECT value FROM json_each(k.skipped))
             ORDER BY n.version, n.seq LIMIT 1) END,
        (SELECT n.seq FROM {p}queue n
         WHERE n.consumer = :consumer AND n.lane IS NOT NULL AND n.lane = k.key AND n.version = k.last + 1
         ORDER BY n.seq LIMIT 1)
    )
    FROM {p}key k
    WHERE k.consumer = :consumer AND k.key IN (SELECT value FROM json_each(:keys)) AND k.blocked IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}queue t WHERE t.consumer = :consumer AND t.lane IS NOT NULL
                      AND t.lane = k.key AND t.turn = 1)
)

-- name: key_gaps
UPDATE {p}key AS k SET gap = CASE WHEN g.is_gap THEN coalesce(k.gap, {now}) END
FROM (
    SELECT k.key, k.blocked IS NULL
           AND EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = :consumer AND q.lane IS NOT NULL AND q.lane = k.key)
           AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = :consumer AND q.lane IS NOT NULL
                           AND q.lane = k.key AND q.turn = 1) AS is_gap
    FROM {p}key k WHERE k.consumer = :consumer AND k.key IN (SELECT value FROM json_each(:keys))
) g
WHERE k.consumer = :consumer AND k.key = g.key AND g.is_gap <> (k.gap IS NOT NULL)

-- name: key_overdue
SELECT key FROM {p}key
WHERE consumer = :consumer AND gap <= {now} - CAST(:seconds * 1000000 AS INTEGER)
  AND (blocked IS NOT NULL OR gap IS NOT NULL)
ORDER BY key LIMIT :limit

-- name: key_waiting
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue WHERE consumer = :consumer AND lane IS NOT NULL AND lane = :key AND turn = 0
  AND NOT EXISTS (SELECT 1 FROM {p}queue t WHERE t.consumer = :consumer AND t.lane IS NOT NULL AND t.lane = :key
                  AND t.turn = 1)
ORDER BY version, seq LIMIT :limit

-- name: key_skip
UPDATE {p}key AS k SET last = w.first - 1, gap = NULL,
    skipped = CASE WHEN :keep THEN (
        SELECT json_group_array(v) FROM (
            SELECT value AS v FROM json_each(k.skipped)
            UNION SELECT n FROM (
                WITH RECURSIVE passed(n) AS (
                    SELECT max(k.last + 1, w.first - 1000) UNION ALL SELECT n + 1 FROM passed WHERE n + 1 < w.first
                )
                SELECT n FROM passed
            )
        )
    ) ELSE k.skipped END
FROM (
    SELECT min(version) AS first FROM {p}queue
    WHERE consumer = :consumer AND lane IS NOT NULL AND lane = :key AND turn = 0 AND version IS NOT NULL
) w
WHERE k.consumer = :consumer AND k.key = :key AND w.first > k.last + 1
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = :consumer AND q.lane IS NOT NULL AND q.lane = :key
                  AND q.turn = 1)

-- name: key_reset
UPDATE {p}key SET last = coalesce(:last, (
        SELECT min(version) - 1 FROM {p}queue
        WHERE consumer = :consumer AND lane IS NOT NULL AND lane = :key AND turn = 0
    )), skipped = '[]', gap = NULL, blocked = NULL, source = NULL, message_id = NULL
WHERE consumer = :consumer AND key = :key

-- name: place_of
-- Where a message stands, or stood before it died.
SELECT q.lane, q.version FROM {p}ledger l JOIN {p}queue q ON q.seq = l.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id
UNION ALL
SELECT lane, version FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL

-- name: keys_stuck
SELECT k.consumer, k.key, k.last,
       CASE WHEN k.blocked IS NOT NULL THEN 'blocked' ELSE 'gap' END,
       ({now} - coalesce(k.blocked, k.gap)) / 1000000.0,
       k.source, k.message_id,
       (SELECT min(q.version) FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane IS NOT NULL AND q.lane = k.key),
       (SELECT count(*) FROM (SELECT 1 FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane IS NOT NULL
                              AND q.lane = k.key LIMIT 10000))
FROM {p}key k
WHERE (k.blocked IS NOT NULL OR k.gap IS NOT NULL)
  AND (:consumer IS NULL OR k.consumer = :consumer) AND (:key IS NULL OR k.key = :key)
ORDER BY coalesce(k.blocked, k.gap), k.consumer, k.key LIMIT :limit

-- name: keys_count
SELECT consumer, count(*) FILTER (WHERE blocked IS NOT NULL), count(*) FILTER (WHERE blocked IS NULL)
FROM {p}key WHERE blocked IS NOT NULL OR gap IS NOT NULL GROUP BY consumer ORDER BY consumer

-- name: spill
UPDATE {p}queue SET attempts = :attempts, turn = :turn, due = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE seq = (SELECT seq FROM {p}ledger
             WHERE consumer = :consumer AND source = :source AND message_id = :message_id)
