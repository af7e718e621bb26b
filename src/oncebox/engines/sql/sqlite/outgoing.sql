-- name: publish
-- each: run once per row. One writer at a time, so every publication is in commit order.
INSERT INTO {p}outbox (slot, id, source, type, topic, key, payload, headers, content_type, lazy, created, due)
VALUES (:slot, :id, :source, :type, :topic, :key, :payload, :headers, :content_type, :lazy, {now},
    {now} + CAST(:delay_seconds * 1000000 AS INTEGER))

-- name: ring
-- Nobody listens here: relays of other processes poll.
SELECT 1

-- name: send_clash
-- each: run once per row.
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, died, reason, error_type, error)
SELECT :consumer, :source, :message_id, :fingerprint, :type, :key, :payload, :headers, :content_type,
    :provenance, {now}, {now}, 'conflict', 'oncebox.errors.PayloadConflict', :clash || l.type
FROM {p}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id
  AND l.fingerprint <> :fingerprint AND length(l.fingerprint) > 0
ON CONFLICT DO NOTHING

-- name: relay_join
INSERT INTO {p}slot (slot, relay, until)
SELECT coalesce((SELECT min(slot) FROM {p}slot WHERE slot >= 32 AND relay = :relay),
                (SELECT min(slot) FROM {p}slot WHERE slot >= 32 AND until <= {now}),
                (SELECT max(max(slot), 31) + 1 FROM {p}slot)),
       :relay, {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE true
ON CONFLICT (slot) DO UPDATE SET relay = excluded.relay, until = excluded.until

-- name: relay_leave
DELETE FROM {p}slot WHERE slot >= 32 AND (relay = :relay OR until <= {now})

-- name: slots_held
SELECT coalesce((SELECT json_group_array(slot) FROM {p}slot
                 WHERE relay = :relay AND slot < 32 AND until > {now}), '[]'),
       (SELECT count(DISTINCT relay) FROM {p}slot WHERE until > {now} AND relay <> '' AND relay <> :relay)

-- name: slots_lease
UPDATE {p}slot SET relay = :relay, until = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE slot IN (
    SELECT slot FROM {p}slot
    WHERE slot < 32 AND ((relay = :relay AND until > {now}) OR until <= {now})
    ORDER BY (relay = :relay AND until > {now}) DESC, slot
    LIMIT :share
)

-- name: slots_free
UPDATE {p}slot SET relay = '', until = 0
WHERE relay = :relay AND slot < 32 AND slot NOT IN (SELECT value FROM json_each(:keep))

-- name: outbox_take
SELECT seq, id, source, type, topic, key, payload, headers, content_type, attempts, lazy
FROM {p}outbox
WHERE state = 0 AND slot IN (SELECT value FROM json_each(:slots)) AND due <= {now}
  AND type NOT IN (SELECT value FROM json_each(:away))
  AND (key IS NULL OR key NOT IN (
      SELECT f.key FROM {p}outbox f
      WHERE f.state = 0 AND f.attempts > 0 AND f.slot IN (SELECT value FROM json_each(:slots))
        AND f.due > {now} AND f.key IS NOT NULL AND f.type NOT IN (SELECT value FROM json_each(:away))))
ORDER BY seq
LIMIT :limit

-- name: outbox_flush
-- Rows of a lazy transaction can be seen before they are on disk; a synced commit takes them along.
UPDATE {p}slot SET until = until WHERE slot = 0

-- name: outbox_drop
DELETE FROM {p}outbox WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: outbox_keep
UPDATE {p}outbox SET state = 1, settled = {now} WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: outbox_fail
UPDATE {p}outbox SET attempts = attempts + 1, error = :error,
    due = {now} + CAST((random() / 18446744073709551616.0 + 0.5) * :seconds * 1000000 AS INTEGER)
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 0

-- name: outbox_park
UPDATE {p}outbox SET attempts = attempts + 1, state = 2, error = :error, settled = {now}
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 0

-- name: outbox_sweep
DELETE FROM {p}outbox WHERE seq IN (
    SELECT seq FROM {p}outbox WHERE state = 1 AND settled < {now} - CAST(:seconds * 1000000 AS INTEGER) LIMIT :limit)

-- name: outbox_status
SELECT coalesce(sum(state = 0), 0), coalesce(sum(state = 2), 0),
       ({now} - min(CASE WHEN state = 0 THEN created END)) / 1000000.0
FROM (SELECT state, created FROM {p}outbox WHERE state IN (0, 2) LIMIT :cap)

-- name: effect_start
INSERT INTO {p}effect (consumer, source, message_id, token, key, request, first_started, started)
VALUES (:consumer, :source, :message_id, :token, :key, :request, {now}, {now})
ON CONFLICT (consumer, source, message_id) DO UPDATE
SET token = excluded.token, state = 'started', calls = calls + 1, started = excluded.started

-- name: effect_look
SELECT token, key, request, state, calls, note, ({now} - first_started) / 1000000.0
FROM {p}effect WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: effect_settle
UPDATE {p}effect SET state = :state, note = :note, settled = {now}
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND token = :token

-- name: effect_resolve
UPDATE {p}effect SET state = :state, note = :note, settled = {now}
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state IN ('started', 'parked')

-- name: effects_open
SELECT consumer, source, message_id, key, state, calls, ({now} - started) / 1000000.0, note
FROM {p}effect WHERE state IN ('started', 'parked') AND (:consumer IS NULL OR consumer = :consumer)
ORDER BY started LIMIT :limit

-- name: effect_late
-- A result, also one that came back after all: it happened, whoever thought otherwise meanwhile.
UPDATE {p}effect SET state = 'done', note = :note, settled = {now}
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state <> 'done'

-- name: effect_find
SELECT consumer, source, state FROM {p}effect
WHERE message_id = :message_id AND (:consumer IS NULL OR consumer = :consumer)
  AND (:source IS NULL OR source = :source)
ORDER BY consumer, source LIMIT 100

-- name: effects_count
SELECT state, count(*) FROM (
    SELECT state FROM {p}effect WHERE state IN ('started', 'parked') LIMIT :cap
) capped GROUP BY state

-- name: queued
-- The queue row of a key, and whether somebody holds it.
SELECT q.seq, q.token IS NOT NULL AND q.due > {now}
FROM {p}queue q JOIN {p}ledger l ON l.seq = q.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: exhume
-- A dead message back in the queue, in its old place, with a fresh budget. `unbury` goes with it.
INSERT INTO {p}queue (seq, consumer, source, message_id, type, fingerprint, key, payload, headers,
    content_type, provenance, received, due, lane, version, turn)
SELECT seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
    received, {now}, lane, version, lane IS NULL
FROM {p}dead WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL
ON CONFLICT DO NOTHING

-- name: unbury
-- Only the message itself; a conflicting payload that lies beside it was never in the queue.
DELETE FROM {p}dead WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL
