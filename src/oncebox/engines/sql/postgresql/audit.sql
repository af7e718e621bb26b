-- name: audit
-- In the transaction of what it tells about: neither is there without the other.
INSERT INTO {p}audit (act, who, verb, reason, filter, consumer, source, message_id, result)
SELECT :act, :who, :verb, :reason, :filter, r.consumer, r.source, r.message_id, r.result
FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :result::text[]) WITH ORDINALITY
    AS r(consumer, source, message_id, result, n)
ORDER BY r.n

-- name: outbox_parked
-- Of these ids (all without any), of this type and source.
SELECT seq, id, source, type, topic, key, attempts, error,
       extract(epoch FROM statement_timestamp() - created)::float8,
       extract(epoch FROM statement_timestamp() - settled)::float8
FROM {p}outbox
WHERE state = 2 AND (:ids::text[] IS NULL OR id = ANY(:ids::text[]))
  AND (:type::text IS NULL OR type = :type::text) AND (:source::text IS NULL OR source = :source::text)
ORDER BY seq LIMIT :limit

-- name: outbox_parked_count
SELECT count(*) FROM (
    SELECT 1 FROM {p}outbox
    WHERE state = 2 AND (:type::text IS NULL OR type = :type::text)
      AND (:source::text IS NULL OR source = :source::text) LIMIT :limit
) capped

-- name: outbox_retry
-- With a fresh budget, and in its old place: before what its key has waiting.
UPDATE {p}outbox SET state = 0, attempts = 0, due = statement_timestamp(), settled = NULL
WHERE seq = ANY(:seqs::bigint[]) AND state = 2
RETURNING seq

-- name: outbox_discard
DELETE FROM {p}outbox WHERE seq = ANY(:seqs::bigint[]) AND state = 2
RETURNING seq

-- name: audit_list
-- What was done, the latest first. A command that touched many is one act: `act` finds all of it.
SELECT act, at, who, verb, reason, filter, consumer, source, message_id, result FROM {p}audit
WHERE (:act::text IS NULL OR act = :act::text) AND (:who::text IS NULL OR who = :who::text)
  AND (:verb::text IS NULL OR verb = :verb::text OR verb LIKE :verb::text || ' %')
  AND (:consumer::text IS NULL OR consumer = :consumer::text)
  AND (:source::text IS NULL OR source = :source::text)
  AND (:ids::text[] IS NULL OR message_id = ANY(:ids::text[]))
  AND (:older_seconds::float8 IS NULL OR at <= statement_timestamp() - :older_seconds::float8 * interval '1 second')
  AND (:newer_seconds::float8 IS NULL OR at >= statement_timestamp() - :newer_seconds::float8 * interval '1 second')
ORDER BY seq DESC LIMIT :limit
