-- part: chosen
SELECT d.consumer, d.source, d.message_id, d.fingerprint, d.type, d.key, d.reason, d.error_type, d.error,
       d.attempts, ({now} - d.received) / 1000000.0, ({now} - d.died) / 1000000.0, d.lane, d.version,
       EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
               AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = x''
                   AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                   AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))), d.kept
FROM {p}dead d
WHERE (:consumer IS NULL OR d.consumer = :consumer)
  AND (:source IS NULL OR d.source = :source)
  AND (:ids IS NULL OR d.message_id IN (SELECT value FROM json_each(:ids)))
  AND (:type IS NULL OR d.type = :type)
  AND (:reason IS NULL OR d.reason = :reason)
  AND (:error_type IS NULL OR d.error_type = :error_type OR d.error_type LIKE '%.' || :error_type)
  AND (:key IS NULL OR d.key = :key OR d.lane = :key)
  AND (:older_seconds IS NULL OR d.died <= {now} - CAST(:older_seconds * 1000000 AS INTEGER))
  AND (:newer_seconds IS NULL OR d.died >= {now} - CAST(:newer_seconds * 1000000 AS INTEGER))
  AND (NOT :whole OR d.kept)
  AND (NOT :own OR EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
                           AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = x''
                               AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                               AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))))
ORDER BY d.consumer, d.lane, d.version, d.seq, d.died, d.source, d.message_id
LIMIT :limit

-- name: dead_list
{chosen}

-- name: dead_choose
{chosen}

-- name: dead_count
SELECT d.consumer, d.reason, d.type, count(*)
FROM (
    SELECT consumer, reason, type FROM {p}dead d
    WHERE (:consumer IS NULL OR d.consumer = :consumer)
      AND (:source IS NULL OR d.source = :source)
      AND (:ids IS NULL OR d.message_id IN (SELECT value FROM json_each(:ids)))
      AND (:type IS NULL OR d.type = :type)
      AND (:reason IS NULL OR d.reason = :reason)
      AND (:error_type IS NULL OR d.error_type = :error_type OR d.error_type LIKE '%.' || :error_type)
      AND (:key IS NULL OR d.key = :key OR d.lane = :key)
      AND (:older_seconds IS NULL OR d.died <= {now} - CAST(:older_seconds * 1000000 AS INTEGER))
      AND (:newer_seconds IS NULL OR d.died >= {now} - CAST(:newer_seconds * 1000000 AS INTEGER))
      AND (NOT :whole OR d.kept)
      AND (NOT :own OR EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
                               AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = x''
                                   AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                                   AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))))
    LIMIT :limit
) d
GROUP BY d.consumer, d.reason, d.type ORDER BY d.consumer, d.reason, d.type

-- name: dead_row
SELECT type, key, payload, headers, content_type, provenance, lane, version, fingerprint
FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND fingerprint = :fingerprint

-- name: dead_reopen
-- each: run once per row.
UPDATE {p}ledger SET state = 0, finished = NULL, again = {now}, fingerprint = :fingerprint
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
  AND fingerprint IN (:fingerprint, x'')

-- name: dead_requeue
-- each: run once per row.
INSERT INTO {p}queue (seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type,
    provenance, received, due, lane, version, turn)
SELECT l.seq, d.consumer, d.source, d.message_id, d.type, d.fingerprint, d.key, d.payload, d.headers,
    d.content_type, d.provenance, d.received, {now}, d.lane, d.version, d.lane IS NULL
FROM {p}dead d
JOIN {p}ledger l ON l.consumer = d.consumer AND l.source = d.source AND l.message_id = d.message_id
     AND l.fingerprint = d.fingerprint
WHERE d.consumer = :consumer AND d.source = :source AND d.message_id = :message_id
ON CONFLICT DO NOTHING

-- name: dead_discard
-- each: run once per row.
UPDATE {p}ledger SET state = 2, fingerprint = :fingerprint
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
  AND fingerprint IN (:fingerprint, x'')

-- name: dead_drop
-- each: run once per row.
DELETE FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND fingerprint = :fingerprint

-- part: buried
EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
        AND d.message_id = l.message_id AND (d.fingerprint = l.fingerprint OR l.fingerprint = x''))

-- part: beside
EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source AND d.message_id = l.message_id)

-- part: unfinished
FROM {p}ledger l
WHERE l.state = 1
  AND (:consumer IS NULL OR l.consumer = :consumer)
  AND (:source IS NULL OR l.source = :source)
  AND (:ids IS NULL OR l.message_id IN (SELECT value FROM json_each(:ids)))
  AND (:type IS NULL OR l.type = :type)
  AND (:older_seconds IS NULL OR l.received <= {now} - CAST(:older_seconds * 1000000 AS INTEGER))
  AND (:newer_seconds IS NULL OR l.received >= {now} - CAST(:newer_seconds * 1000000 AS INTEGER))

-- name: unfinished_list
SELECT l.consumer, l.source, l.message_id, l.fingerprint, l.type, ({now} - l.received) / 1000000.0
{unfinished}
  AND NOT {buried}
ORDER BY l.consumer, l.source, l.message_id LIMIT :limit

-- name: unfinished_choose
SELECT l.consumer, l.source, l.message_id, l.fingerprint, l.type, ({now} - l.received) / 1000000.0
{unfinished}
  AND NOT {beside}
ORDER BY l.consumer, l.source, l.message_id LIMIT :limit

-- name: unfinished_count
SELECT u.consumer, u.type, count(*)
FROM (
    SELECT l.consumer, l.type
    {unfinished}
      AND NOT {beside}
    LIMIT :limit
) u
GROUP BY u.consumer, u.type ORDER BY u.consumer, u.type

-- name: unfinished_drop
-- each: run once per row.
DELETE FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state = 1
RETURNING consumer, source, message_id

-- name: unfinished_discard
-- each: run once per row.
UPDATE {p}ledger SET state = 2
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state = 1
RETURNING consumer, source, message_id
