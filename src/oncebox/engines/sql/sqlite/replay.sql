-- name: keep
-- each: run once per row.
INSERT INTO {p}kept (consumer, source, message_id, key, payload, headers, content_type, provenance)
VALUES (:consumer, :source, :message_id, :key, :payload, :headers, :content_type, :provenance)
ON CONFLICT DO NOTHING

-- name: replay_bound
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{p}kept'), 0),
       (SELECT min(seq) - 1 FROM {p}kept WHERE consumer = :consumer)

-- name: replay_begin
INSERT INTO {p}replay (run, consumer, policy, origin, filter, started, bound, place)
VALUES (:run, :consumer, :policy, :origin, :filter, {now}, :bound, :place)
ON CONFLICT DO NOTHING

-- name: replay_open
SELECT run, policy, origin, filter, bound, place, mark, handled, skipped, failed, suppressed
FROM {p}replay WHERE consumer = :consumer AND ended IS NULL

-- name: replay_hold
SELECT place FROM {p}replay WHERE run = :run AND ended IS NULL

-- name: replay_move
UPDATE {p}replay SET place = :place, mark = :mark, handled = handled + :handled, skipped = skipped + :skipped,
    failed = failed + :failed, suppressed = suppressed + :suppressed
WHERE run = :run

-- name: replay_end
UPDATE {p}replay SET ended = {now}, result = :result WHERE run = :run AND ended IS NULL

-- name: replay_page
SELECT k.seq, k.source, k.message_id, l.type, l.fingerprint, k.key, k.payload, k.headers, k.content_type, k.provenance
FROM {p}kept k
JOIN {p}ledger l ON l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id
WHERE k.consumer = :consumer AND k.seq > :place AND k.seq <= :bound
  AND (:ids IS NULL OR k.message_id IN (SELECT value FROM json_each(:ids)))
  AND (:source IS NULL OR k.source = :source)
  AND (:type IS NULL OR l.type = :type)
  AND (:key IS NULL OR k.key = :key)
  AND (:since IS NULL OR l.received >= CAST(:since * 1000000 AS INTEGER))
  AND (:until IS NULL OR l.received < CAST(:until * 1000000 AS INTEGER))
ORDER BY k.seq LIMIT :limit

-- name: replay_known
-- each: run once per row.
SELECT l.source, l.message_id, l.fingerprint, l.state,
       EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq)
       OR EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
                  AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint),
       (SELECT k.seq FROM {p}kept k WHERE k.consumer = l.consumer AND k.source = l.source
        AND k.message_id = l.message_id)
FROM {p}ledger l WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: replay_watch
-- Statements that have a transaction's changes to the user's tables counted: temporary triggers, which go with
-- its rollback. Virtual tables can have none; a name with a colon would read as a parameter.
SELECT 'CREATE TEMP TABLE {p}shadow (name TEXT NOT NULL, what TEXT NOT NULL)'
UNION ALL
SELECT printf('CREATE TEMP TRIGGER {p}shadow_%d_%s AFTER %s ON main."%w" '
              || 'BEGIN INSERT INTO {p}shadow VALUES (%Q, %Q); END', t.rowid, w.what, w.what, t.name, t.name, w.what)
FROM main.sqlite_schema t
CROSS JOIN (SELECT 'insert' AS what UNION ALL SELECT 'update' UNION ALL SELECT 'delete') w
WHERE t.type = 'table' AND substr(t.name, 1, 7) <> 'sqlite_' AND substr(t.name, 1, length('{p}')) <> '{p}'
  AND t.sql NOT LIKE 'CREATE VIRTUAL%' AND instr(t.name, ':') = 0

-- name: replay_changes
SELECT name, sum(what = 'insert'), sum(what = 'update'), sum(what = 'delete') FROM temp.{p}shadow GROUP BY name

-- name: replay_counts
SELECT consumer, sum(handled), sum(suppressed) FROM {p}replay GROUP BY consumer
