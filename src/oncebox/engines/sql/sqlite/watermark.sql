-- name: watermark_move
UPDATE {p}watermark SET last = :last, digest = :digest, moved = {now},
    topic_id = CASE WHEN :topic_id = '' THEN topic_id ELSE :topic_id END
WHERE consumer = :consumer AND topic = :topic AND partition = :partition
  AND last < :first AND last >= :after
  AND (topic_id = :topic_id OR topic_id = '' OR :topic_id = '')

-- name: watermark_look
SELECT last, topic_id, digest, ({now} - moved) / 1000000.0
FROM {p}watermark WHERE consumer = :consumer AND topic = :topic AND partition = :partition

-- name: watermark_begin
INSERT INTO {p}watermark (consumer, topic, partition, last, topic_id, digest, moved)
VALUES (:consumer, :topic, :partition, :last, :topic_id, :digest, {now})
ON CONFLICT DO NOTHING

-- name: watermark_set
UPDATE {p}watermark SET last = :last, digest = :digest, moved = {now},
    topic_id = CASE WHEN :topic_id = '' THEN topic_id ELSE :topic_id END
WHERE consumer = :consumer AND topic = :topic AND partition = :partition

-- name: watermark_list
SELECT consumer, topic, partition, last, topic_id, ({now} - moved) / 1000000.0 AS age_seconds
FROM {p}watermark
WHERE (:consumer IS NULL OR consumer = :consumer) AND (:topic IS NULL OR topic = :topic)
ORDER BY consumer, topic, partition
LIMIT :limit

-- name: watermark_forget
DELETE FROM {p}watermark
WHERE consumer = :consumer AND topic = :topic AND (:partition IS NULL OR partition = :partition)
RETURNING partition, last
