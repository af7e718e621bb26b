-- name: watermark_move
-- The claim of a run of messages: from a mark before the first of them and not before the one that was read ahead
-- of it. Changes nothing for what is handled already, for what is not its turn, and in another topic of the same name.
-- The row stays locked until the effects are committed.
UPDATE {p}watermark SET last = :last::bigint, digest = :digest, moved = statement_timestamp(),
    topic_id = CASE WHEN :topic_id::text = '' THEN topic_id ELSE :topic_id::text END
WHERE consumer = :consumer AND topic = :topic AND partition = :partition
  AND last < :first::bigint AND last >= :after::bigint
  AND (topic_id = :topic_id::text OR topic_id = '' OR :topic_id::text = '')

-- name: watermark_look
-- Why it did not move. Locked: what is decided by it is done in this transaction.
SELECT last, topic_id, digest, extract(epoch FROM clock_timestamp() - moved)::float8
FROM {p}watermark WHERE consumer = :consumer AND topic = :topic AND partition = :partition
FOR UPDATE

-- name: watermark_begin
-- DO NOTHING: another consumer of the group may have begun at the same time.
INSERT INTO {p}watermark (consumer, topic, partition, last, topic_id, digest)
VALUES (:consumer, :topic, :partition, :last, :topic_id, :digest)
ON CONFLICT DO NOTHING

-- name: watermark_set
-- Under the lock of watermark_move or watermark_look.
UPDATE {p}watermark SET last = :last::bigint, digest = :digest, moved = statement_timestamp(),
    topic_id = CASE WHEN :topic_id::text = '' THEN topic_id ELSE :topic_id::text END
WHERE consumer = :consumer AND topic = :topic AND partition = :partition

-- name: watermark_list
SELECT consumer, topic, partition, last, topic_id,
       extract(epoch FROM clock_timestamp() - moved)::float8 AS age_seconds
FROM {p}watermark
WHERE (:consumer::text IS NULL OR consumer = :consumer::text) AND (:topic::text IS NULL OR topic = :topic::text)
ORDER BY consumer, topic, partition
LIMIT :limit

-- name: watermark_forget
DELETE FROM {p}watermark
WHERE consumer = :consumer AND topic = :topic AND (:partition::int IS NULL OR partition = :partition::int)
RETURNING partition, last
