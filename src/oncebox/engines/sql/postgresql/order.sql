-- name: key_touch
-- A row for every lane, before anything is put in line there. Sorted, like all locks on lanes.
INSERT INTO {p}key (consumer, key, last)
SELECT :consumer, k, :last FROM unnest(:keys::text[]) AS k ORDER BY k
ON CONFLICT DO NOTHING

-- name: key_lock
-- Whoever adds to a lane, or takes from it, does so under this lock; else a message that is stored
-- while the lane's last one is finished would be seen by neither, and wait for ever. A handler runs
-- without it.
SELECT key, last, to_json(skipped)::text, blocked IS NOT NULL FROM {p}key
WHERE consumer = :consumer AND key = ANY(:keys::text[])
ORDER BY key
FOR UPDATE

-- name: key_backlog
-- Asked after the lock was granted: its own snapshot is older.
SELECT DISTINCT lane FROM {p}queue WHERE consumer = :consumer AND lane = ANY(:keys::text[])

-- name: key_start
-- Where a lane starts that stands nowhere yet.
UPDATE {p}key SET last = :last WHERE consumer = :consumer AND key = :key AND last IS NULL

-- name: key_moved
-- A version was handled, or given up on. Only the next one moves the lane: somebody may have said
-- meanwhile that it stands elsewhere.
UPDATE {p}key k SET touched = statement_timestamp(), skipped = array_remove(k.skipped, r.version),
    last = CASE WHEN k.last IS NULL OR r.version = k.last + 1 THEN r.version ELSE k.last END
FROM unnest(:key::text[], :version::bigint[]) AS r(key, version)
WHERE k.consumer = :consumer AND k.key = r.key AND k.key = ANY(:key::text[])

-- name: key_block
-- Who blocks first stays named: what is behind it can be refused while it waits, and must not stand for it.
UPDATE {p}key SET blocked = statement_timestamp(), source = :source, message_id = :message_id
WHERE consumer = :consumer AND key = :key AND blocked IS NULL

-- name: key_unblock
UPDATE {p}key SET blocked = NULL, source = NULL, message_id = NULL
WHERE consumer = :consumer AND key = :key AND blocked IS NOT NULL

-- name: key_redriven
-- A dead message is back in line: it no longer blocks, and its version is handled although it is past. What was
-- refused while it blocked blocks now; what is ahead of its turn is missing when that comes.
UPDATE {p}key k SET
    (blocked, source, message_id) = (
        SELECT CASE WHEN n.message_id IS NOT NULL THEN k.blocked END, n.source, n.message_id
        FROM (
            SELECT k.source, k.message_id WHERE NOT (k.source = :source AND k.message_id = :message_id)
            UNION ALL
            (SELECT d.source, d.message_id FROM {p}dead d
             WHERE k.source = :source AND k.message_id = :message_id
               AND d.consumer = k.consumer AND d.died >= k.blocked AND d.lane = k.key
               AND d.reason NOT IN ('conflict', 'unfinished') AND (d.version IS NULL OR d.version <= k.last)
               AND NOT (d.source = :source AND d.message_id = :message_id)
             ORDER BY d.died, d.seq LIMIT 1)
        ) n
    ),
    last = coalesce(last, :version::bigint - 1),
    skipped = CASE WHEN :version::bigint <= last AND NOT :version::bigint = ANY(skipped)
                   THEN array_append(skipped, :version::bigint) ELSE skipped END
WHERE consumer = :consumer AND key = :key

-- name: key_stale
-- What waits with a version that is past: another message brought it. `key_drop` goes with it.
UPDATE {p}ledger l SET state = 3 FROM {p}queue q, {p}key k
WHERE k.consumer = :consumer AND k.key = ANY(:keys::text[]) AND q.consumer = k.consumer AND q.lane = k.key
  AND q.version <= k.last AND q.version <> ALL(k.skipped) AND NOT q.turn
  AND l.consumer = q.consumer AND l.source = q.source AND l.message_id = q.message_id

-- name: key_drop
DELETE FROM {p}queue q USING {p}key k
WHERE k.consumer = :consumer AND k.key = ANY(:keys::text[]) AND q.consumer = k.consumer AND q.lane = k.key
  AND q.version <= k.last AND q.version <> ALL(k.skipped) AND NOT q.turn

-- name: key_pass
-- Gives the turn to the next of each lane that nobody has the turn of: the earliest by arrival, the
-- one that was passed over and has come after all, or the next by version. Written so that every part
-- goes by an index whatever the statistics say: the order is the index's own (`version` is NULL in it),
-- and a LIMIT keeps a look for the turn from becoming a join.
UPDATE {p}queue q SET turn = true
FROM (
    SELECT coalesce(
        (SELECT n.seq FROM {p}queue n
         WHERE n.consumer = :consumer AND n.lane = k.key AND n.version IS NULL
         ORDER BY n.version, n.seq LIMIT 1),
        CASE WHEN k.skipped <> '{{}}' THEN
            (SELECT n.seq FROM {p}queue n
             WHERE n.consumer = :consumer AND n.lane = k.key AND n.version = ANY(k.skipped)
             ORDER BY n.version, n.seq LIMIT 1) END,
        (SELECT n.seq FROM {p}queue n
         WHERE n.consumer = :consumer AND n.lane = k.key AND n.version = k.last + 1
         ORDER BY n.seq LIMIT 1)
    ) AS seq
    FROM {p}key k
    WHERE k.consumer = :consumer AND k.key = ANY(:keys::text[]) AND k.blocked IS NULL
      AND (SELECT t.seq FROM {p}queue t WHERE t.consumer = :consumer AND t.lane = k.key AND t.turn LIMIT 1) IS NULL
) next
WHERE q.seq = next.seq

-- name: key_gaps
-- Lanes in which something waits and nothing has the turn wait for a version that is missing.
UPDATE {p}key k SET gap = CASE WHEN g.is_gap THEN coalesce(k.gap, statement_timestamp()) END
FROM (
    SELECT k.key, k.blocked IS NULL
           AND (SELECT q.seq FROM {p}queue q WHERE q.consumer = :consumer AND q.lane = k.key LIMIT 1) IS NOT NULL
           AND (SELECT q.seq FROM {p}queue q WHERE q.consumer = :consumer AND q.lane = k.key AND q.turn LIMIT 1) IS NULL
               AS is_gap
    FROM {p}key k WHERE k.consumer = :consumer AND k.key = ANY(:keys::text[])
) g
WHERE k.consumer = :consumer AND k.key = g.key AND k.key = ANY(:keys::text[]) AND g.is_gap IS DISTINCT FROM (k.gap IS NOT NULL)

-- name: key_overdue
-- Lanes that have waited for a missing version for longer than they should.
SELECT key FROM {p}key
WHERE consumer = :consumer AND gap <= statement_timestamp() - :seconds::float8 * interval '1 second'
  AND (blocked IS NOT NULL OR gap IS NOT NULL)
ORDER BY key LIMIT :limit

-- name: key_waiting
-- What waits in a lane that nobody has the turn of, by place.
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue WHERE consumer = :consumer AND lane = :key AND NOT turn
  AND NOT EXISTS (SELECT 1 FROM {p}queue t WHERE t.consumer = :consumer AND t.lane = :key AND t.turn)
ORDER BY version, seq LIMIT :limit

-- name: key_skip
-- Goes on before the first that waits; with `keep` what was passed over is still handled if it comes.
UPDATE {p}key k SET last = w.first - 1, gap = NULL,
    skipped = CASE WHEN :keep THEN (
        SELECT coalesce(array_agg(v ORDER BY v), '{{}}') FROM (
            SELECT unnest(k.skipped) AS v
            UNION SELECT generate_series(greatest(k.last + 1, w.first - 1000), w.first - 1)
        ) all_of_them
    ) ELSE k.skipped END
FROM (
    SELECT min(version) AS first FROM {p}queue
    WHERE consumer = :consumer AND lane = :key AND NOT turn AND version IS NOT NULL
) w
WHERE k.consumer = :consumer AND k.key = :key AND w.first > k.last + 1
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = :consumer AND q.lane = :key AND q.turn)

-- name: key_reset
-- A person says where a lane stands; NULL: before the first that waits, else wherever the next one starts it.
UPDATE {p}key SET last = coalesce(:last::bigint, (
        SELECT min(version) - 1 FROM {p}queue WHERE consumer = :consumer AND lane = :key AND NOT turn
    )), skipped = '{{}}', gap = NULL, blocked = NULL, source = NULL, message_id = NULL
WHERE consumer = :consumer AND key = :key

-- name: place_of
-- Where a message stands, or stood before it died.
SELECT q.lane, q.version FROM {p}ledger l JOIN {p}queue q ON q.seq = l.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id
UNION ALL
SELECT lane, version FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL

-- name: keys_stuck
-- Lanes that need a person, the longest stuck first; with what each waits for.
SELECT k.consumer, k.key, k.last,
       CASE WHEN k.blocked IS NOT NULL THEN 'blocked' ELSE 'gap' END,
       extract(epoch FROM statement_timestamp() - coalesce(k.blocked, k.gap))::float8,
       k.source, k.message_id,
       (SELECT min(q.version) FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key),
       (SELECT count(*) FROM (SELECT 1 FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key LIMIT 10000) n)
FROM {p}key k
WHERE (k.blocked IS NOT NULL OR k.gap IS NOT NULL)
  AND (:consumer::text IS NULL OR k.consumer = :consumer::text)
  AND (:key::text IS NULL OR k.key = :key::text)
ORDER BY coalesce(k.blocked, k.gap), k.consumer, k.key LIMIT :limit

-- name: keys_count
SELECT consumer, count(*) FILTER (WHERE blocked IS NOT NULL), count(*) FILTER (WHERE blocked IS NULL)
FROM {p}key WHERE blocked IS NOT NULL OR gap IS NOT NULL GROUP BY consumer ORDER BY consumer

-- name: spill
-- An inline message that failed, or came too early, is the queue's from now on.
UPDATE {p}queue q SET attempts = :attempts::int, turn = :turn,
    due = clock_timestamp() + :seconds::float8 * interval '1 second'
FROM {p}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id AND q.seq = l.seq
