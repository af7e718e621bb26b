-- name: audit
-- each: run once per row.
INSERT INTO {p}audit (act, at, who, verb, reason, filter, consumer, source, message_id, result)
VALUES (:act, {now}, :who, :verb, :reason, :filter, :consumer, :source, :message_id, :result)

-- name: outbox_parked
SELECT seq, id, source, type, topic, key, attempts, error, ({now} - created) / 1000000.0,
       ({now} - settled) / 1000000.0
FROM {p}outbox
WHERE state = 2 AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND (:type IS NULL OR type = :type) AND (:source IS NULL OR source = :source)
ORDER BY seq LIMIT :limit

-- name: outbox_parked_count
SELECT count(*) FROM (
    SELECT 1 FROM {p}outbox
    WHERE state = 2 AND (:type IS NULL OR type = :type) AND (:source IS NULL OR source = :source) LIMIT :limit
) capped

-- name: outbox_retry
UPDATE {p}outbox SET state = 0, attempts = 0, due = {now}, settled = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 2
RETURNING seq

-- name: outbox_discard
DELETE FROM {p}outbox WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 2
RETURNING seq

-- name: audit_list
SELECT act, at, who, verb, reason, filter, consumer, source, message_id, result FROM {p}audit
WHERE (:act IS NULL OR act = :act) AND (:who IS NULL OR who = :who)
  AND (:verb IS NULL OR verb = :verb OR verb LIKE :verb || ' %')
  AND (:consumer IS NULL OR consumer = :consumer)
  AND (:source IS NULL OR source = :source)
  AND (:ids IS NULL OR message_id IN (SELECT value FROM json_each(:ids)))
  AND (:older_seconds IS NULL OR at <= {now} - CAST(:older_seconds * 1000000 AS INTEGER))
  AND (:newer_seconds IS NULL OR at >= {now} - CAST(:newer_seconds * 1000000 AS INTEGER))
ORDER BY seq DESC LIMIT :limit
