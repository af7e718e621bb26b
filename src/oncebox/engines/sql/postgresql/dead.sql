-- part: chosen
-- The chosen ones, in the order in which they are to run again. A row whose fingerprint is not the
-- ledger's lies beside the message it clashes with; the guard may have none, which the first one takes.
SELECT d.consumer, d.source, d.message_id, d.fingerprint, d.type, d.key, d.reason, d.error_type, d.error,
       d.attempts, extract(epoch FROM statement_timestamp() - d.received)::float8,
       extract(epoch FROM statement_timestamp() - d.died)::float8, d.lane, d.version,
       EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
               AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = ''::bytea
                   AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                   AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))), d.kept
FROM {p}dead d
WHERE (:consumer::text IS NULL OR d.consumer = :consumer::text)
  AND (:source::text IS NULL OR d.source = :source::text)
  AND (:ids::text[] IS NULL OR d.message_id = ANY(:ids::text[]))
  AND (:type::text IS NULL OR d.type = :type::text)
  AND (:reason::text IS NULL OR d.reason = :reason::text)
  AND (:error_type::text IS NULL OR d.error_type = :error_type::text OR d.error_type LIKE '%.' || :error_type::text)
  AND (:key::text IS NULL OR d.key = :key::text OR d.lane = :key::text)
  AND (:older_seconds::float8 IS NULL OR d.died <= statement_timestamp() - :older_seconds::float8 * interval '1 second')
  AND (:newer_seconds::float8 IS NULL OR d.died >= statement_timestamp() - :newer_seconds::float8 * interval '1 second')
  AND (NOT :whole OR d.kept)
  AND (NOT :own OR EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
                           AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = ''::bytea
                               AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                               AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))))
ORDER BY d.consumer, d.lane, d.version, d.seq, d.died, d.source, d.message_id
LIMIT :limit

-- name: dead_list
{chosen}

-- name: dead_choose
-- What somebody else decides about now is left out.
{chosen}
FOR UPDATE OF d SKIP LOCKED

-- name: dead_count
SELECT d.consumer, d.reason, d.type, count(*)
FROM (
    SELECT consumer, reason, type FROM {p}dead d
    WHERE (:consumer::text IS NULL OR d.consumer = :consumer::text)
      AND (:source::text IS NULL OR d.source = :source::text)
      AND (:ids::text[] IS NULL OR d.message_id = ANY(:ids::text[]))
      AND (:type::text IS NULL OR d.type = :type::text)
      AND (:reason::text IS NULL OR d.reason = :reason::text)
      AND (:error_type::text IS NULL OR d.error_type = :error_type::text OR d.error_type LIKE '%.' || :error_type::text)
      AND (:key::text IS NULL OR d.key = :key::text OR d.lane = :key::text)
      AND (:older_seconds::float8 IS NULL OR d.died <= statement_timestamp() - :older_seconds::float8 * interval '1 second')
      AND (:newer_seconds::float8 IS NULL OR d.died >= statement_timestamp() - :newer_seconds::float8 * interval '1 second')
      AND (NOT :whole OR d.kept)
      AND (NOT :own OR EXISTS (SELECT 1 FROM {p}ledger l WHERE l.consumer = d.consumer AND l.source = d.source
                               AND l.message_id = d.message_id AND (l.fingerprint = d.fingerprint OR l.fingerprint = ''::bytea
                                   AND NOT EXISTS (SELECT 1 FROM {p}dead e WHERE e.consumer = d.consumer AND e.source = d.source
                                                   AND e.message_id = d.message_id AND e.fingerprint < d.fingerprint))))
    LIMIT :limit
) d
GROUP BY d.consumer, d.reason, d.type ORDER BY d.consumer, d.reason, d.type

-- name: dead_row
SELECT type, key, payload, headers, content_type, provenance, lane, version, fingerprint
FROM {p}dead
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND fingerprint = :fingerprint
FOR UPDATE

-- name: dead_reopen
-- The ledger says again what it said when the message was stored. Its old place matters only in a lane;
-- elsewhere it would keep retention from passing everything younger. In a lane nothing but `again` gives it its window.
UPDATE {p}ledger l
SET seq = CASE WHEN d.lane IS NULL THEN nextval('{p}queue_seq') ELSE coalesce(d.seq, l.seq) END, state = 0, finished = NULL,
    again = statement_timestamp(), fingerprint = d.fingerprint
FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :fingerprint::bytea[])
    AS k(consumer, source, message_id, fingerprint)
JOIN {p}dead d ON d.consumer = k.consumer AND d.source = k.source AND d.message_id = k.message_id
WHERE l.consumer = d.consumer AND l.source = d.source AND l.message_id = d.message_id
  AND d.fingerprint = k.fingerprint AND l.fingerprint IN (d.fingerprint, ''::bytea)

-- name: dead_requeue
INSERT INTO {p}queue (seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type,
    provenance, received, due, lane, version, turn)
SELECT l.seq, d.consumer, d.source, d.message_id, d.type, d.fingerprint, d.key, d.payload, d.headers,
    d.content_type, d.provenance, d.received, statement_timestamp(), d.lane, d.version, d.lane IS NULL
FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
JOIN {p}dead d ON d.consumer = k.consumer AND d.source = k.source AND d.message_id = k.message_id
JOIN {p}ledger l ON l.consumer = d.consumer AND l.source = d.source AND l.message_id = d.message_id
     AND l.fingerprint = d.fingerprint
ORDER BY l.seq
ON CONFLICT DO NOTHING

-- name: dead_discard
UPDATE {p}ledger l SET state = 2, fingerprint = k.fingerprint
FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :fingerprint::bytea[])
    AS k(consumer, source, message_id, fingerprint)
WHERE l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id
  AND l.fingerprint IN (k.fingerprint, ''::bytea)

-- name: dead_drop
DELETE FROM {p}dead d
USING unnest(:consumer::text[], :source::text[], :message_id::text[], :fingerprint::bytea[])
    AS k(consumer, source, message_id, fingerprint)
WHERE d.consumer = k.consumer AND d.source = k.source AND d.message_id = k.message_id
  AND d.fingerprint = k.fingerprint

-- part: buried
-- Another delivery has brought it among the dead, payload and all. The guard may have no fingerprint of it.
EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
        AND d.message_id = l.message_id AND (d.fingerprint = l.fingerprint OR l.fingerprint = ''::bytea))

-- part: beside
-- Something of its id lies among the dead: itself, or another payload, whose history the ledger row is.
EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source AND d.message_id = l.message_id)

-- part: unfinished
FROM {p}ledger l
WHERE l.state = 1
  AND (:consumer::text IS NULL OR l.consumer = :consumer::text)
  AND (:source::text IS NULL OR l.source = :source::text)
  AND (:ids::text[] IS NULL OR l.message_id = ANY(:ids::text[]))
  AND (:type::text IS NULL OR l.type = :type::text)
  AND (:older_seconds::float8 IS NULL OR l.received <= statement_timestamp() - :older_seconds::float8 * interval '1 second')
  AND (:newer_seconds::float8 IS NULL OR l.received >= statement_timestamp() - :newer_seconds::float8 * interval '1 second')

-- name: unfinished_list
SELECT l.consumer, l.source, l.message_id, l.fingerprint, l.type,
       extract(epoch FROM statement_timestamp() - l.received)::float8
{unfinished}
  AND NOT {buried}
ORDER BY l.consumer, l.source, l.message_id LIMIT :limit

-- name: unfinished_choose
SELECT l.consumer, l.source, l.message_id, l.fingerprint, l.type,
       extract(epoch FROM statement_timestamp() - l.received)::float8
{unfinished}
  AND NOT {beside}
ORDER BY l.consumer, l.source, l.message_id LIMIT :limit
FOR UPDATE OF l SKIP LOCKED

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
-- The next delivery is the first again. Asked once more, now that nobody can bury it: who did so after the choice had
-- looked, and before it had its locks, is seen by a statement of its own only.
DELETE FROM {p}ledger l USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id AND l.state = 1
  AND NOT {beside}
RETURNING l.consumer, l.source, l.message_id

-- name: unfinished_discard
UPDATE {p}ledger l SET state = 2
FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id AND l.state = 1
  AND NOT {beside}
RETURNING l.consumer, l.source, l.message_id
