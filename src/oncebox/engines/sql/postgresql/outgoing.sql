-- name: publish
-- Rows of the business transaction. The locks are taken in key order and before the numbers are
-- given out, so that publications of one key that ask for it are numbered in commit order.
WITH locked AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(hashtextextended(k.key, 7219))) AS n
    FROM (SELECT DISTINCT r.key FROM unnest(:key::text[], :ordered::boolean[]) AS r(key, ordered)
          WHERE r.ordered AND r.key IS NOT NULL ORDER BY 1) k
)
INSERT INTO {p}outbox (slot, id, source, type, topic, key, payload, headers, content_type, lazy, due)
SELECT r.slot, r.id, r.source, r.type, r.topic, r.key, r.payload, r.headers, r.content_type, r.lazy,
       statement_timestamp() + r.delay_seconds * interval '1 second'
FROM locked, unnest(
    :slot::smallint[], :id::text[], :source::text[], :type::text[], :topic::text[], :key::text[],
    :payload::bytea[], :headers::bytea[], :content_type::text[], :lazy::boolean[], :delay_seconds::float8[]
) WITH ORDINALITY AS r(slot, id, source, type, topic, key, payload, headers, content_type, lazy, delay_seconds, n)
WHERE locked.n >= 0
ORDER BY r.n

-- name: ring
-- After commit, on the second connection: NOTIFY inside the effects' transaction takes a global lock.
SELECT pg_notify('oncebox_outbox', '')

-- name: send_clash
-- What `store` left out because its id is known: with another payload or type it is kept for a person,
-- beside the message it clashes with. Of a copy nothing is left to do.
INSERT INTO {p}dead (consumer, source, message_id, fingerprint, type, key, payload, headers, content_type,
    provenance, received, reason, error_type, error)
SELECT :consumer, r.source, r.message_id, r.fingerprint, r.type, r.key, r.payload, r.headers, r.content_type,
    r.provenance, statement_timestamp(), 'conflict', 'oncebox.errors.PayloadConflict', r.clash || l.type
FROM unnest(
    :source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[], :key::text[], :payload::bytea[],
    :headers::bytea[], :content_type::text[], :provenance::text[], :clash::text[]
) AS r(source, message_id, type, fingerprint, key, payload, headers, content_type, provenance, clash)
CROSS JOIN LATERAL (
    SELECT l.type FROM {p}ledger l
    WHERE l.consumer = :consumer AND l.source = r.source AND l.message_id = r.message_id
      AND l.fingerprint <> r.fingerprint AND l.fingerprint <> ''
    OFFSET 0
) l
ORDER BY r.source, r.message_id
ON CONFLICT DO NOTHING

-- name: relay_join
-- A relay that waits for slots has none to be counted by, so each has a seat: a row past the slots.
-- A seat that lapsed is used again; of two who want the same one, the other tries at its next turn.
INSERT INTO {p}slot (slot, relay, until)
SELECT coalesce((SELECT min(slot) FROM {p}slot WHERE slot >= 32 AND relay = :relay),
                (SELECT min(slot) FROM {p}slot WHERE slot >= 32 AND until <= statement_timestamp()),
                (SELECT greatest(max(slot), 31) + 1 FROM {p}slot)),
       :relay, clock_timestamp() + :seconds::float8 * interval '1 second'
ON CONFLICT (slot) DO UPDATE SET relay = excluded.relay, until = excluded.until
WHERE slot.relay = excluded.relay OR slot.until <= statement_timestamp()

-- name: relay_leave
DELETE FROM {p}slot WHERE slot >= 32 AND (relay = :relay OR until <= statement_timestamp())

-- name: slots_held
-- What this relay has, and how many others there are, those who wait for slots included.
SELECT coalesce(array_agg(slot ORDER BY slot) FILTER (WHERE relay = :relay AND slot < 32), '{{}}'),
       count(DISTINCT relay) FILTER (WHERE relay <> '' AND relay <> :relay)
FROM {p}slot WHERE until > statement_timestamp()

-- name: slots_lease
-- Keeps what it has and takes what is free, up to its fair share.
UPDATE {p}slot SET relay = :relay, until = clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE slot IN (
    SELECT slot FROM {p}slot
    WHERE slot < 32 AND ((relay = :relay AND until > statement_timestamp()) OR until <= statement_timestamp())
    ORDER BY (relay = :relay AND until > statement_timestamp()) DESC, slot
    LIMIT :share
    FOR UPDATE SKIP LOCKED
)

-- name: slots_free
-- Gives up what is over its share, or everything when it stops.
UPDATE {p}slot SET relay = '', until = '-infinity'
WHERE relay = :relay AND slot < 32 AND slot <> ALL(:keep::smallint[])

-- name: outbox_take
-- By state, in order. A key whose head waits for another try waits as a whole; a head whose sink is away
-- holds up nothing that goes elsewhere.
SELECT seq, id, source, type, topic, key, payload, headers, content_type, attempts, lazy
FROM {p}outbox
WHERE state = 0 AND slot = ANY(:slots::smallint[]) AND due <= statement_timestamp()
  AND type <> ALL(:away::text[])
  AND (key IS NULL OR key NOT IN (
      SELECT f.key FROM {p}outbox f
      WHERE f.state = 0 AND f.attempts > 0 AND f.slot = ANY(:slots::smallint[])
        AND f.due > statement_timestamp() AND f.key IS NOT NULL AND f.type <> ALL(:away::text[])))
ORDER BY seq
LIMIT :limit

-- name: outbox_flush
-- Before anything is published that may not be on disk: this commit flushes what was committed before.
SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'oncebox', '')::text

-- name: outbox_drop
DELETE FROM {p}outbox WHERE seq = ANY(:seqs::bigint[])

-- name: outbox_keep
UPDATE {p}outbox SET state = 1, settled = clock_timestamp() WHERE seq = ANY(:seqs::bigint[])

-- name: outbox_fail
UPDATE {p}outbox SET attempts = attempts + 1, error = :error,
    due = clock_timestamp() + random() * :seconds::float8 * interval '1 second'
WHERE seq = ANY(:seqs::bigint[]) AND state = 0

-- name: outbox_park
-- Not what another relay has published meanwhile.
UPDATE {p}outbox SET attempts = attempts + 1, state = 2, error = :error, settled = clock_timestamp()
WHERE seq = ANY(:seqs::bigint[]) AND state = 0

-- name: outbox_sweep
-- Published rows past their time; bounded, each run its own transaction.
DELETE FROM {p}outbox WHERE seq IN (
    SELECT seq FROM {p}outbox
    WHERE state = 1 AND settled < statement_timestamp() - :seconds::float8 * interval '1 second'
    LIMIT :limit FOR UPDATE SKIP LOCKED)

-- name: outbox_status
SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 2),
       extract(epoch FROM statement_timestamp() - min(created) FILTER (WHERE state = 0))::float8
FROM (SELECT state, created FROM {p}outbox WHERE state IN (0, 2) LIMIT :cap) capped

-- name: effect_start
-- The intent, durable before the call. One row per message: a second start is a second call.
INSERT INTO {p}effect (consumer, source, message_id, token, key, request)
VALUES (:consumer, :source, :message_id, :token, :key, :request)
ON CONFLICT (consumer, source, message_id) DO UPDATE
SET token = excluded.token, state = 'started', calls = effect.calls + 1, started = statement_timestamp()

-- name: effect_look
SELECT token, key, request, state, calls, note,
       extract(epoch FROM statement_timestamp() - first_started)::float8
FROM {p}effect WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: effect_settle
-- Only by the holder of the token; a late finisher is told apart by changing no row.
UPDATE {p}effect SET state = :state, note = :note, settled = clock_timestamp()
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND token = :token

-- name: effect_resolve
-- By a person or a late result: whatever the token.
UPDATE {p}effect SET state = :state, note = :note, settled = clock_timestamp()
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state IN ('started', 'parked')

-- name: effects_open
SELECT consumer, source, message_id, key, state, calls,
       extract(epoch FROM statement_timestamp() - started)::float8, note
FROM {p}effect WHERE state IN ('started', 'parked') AND (:consumer::text IS NULL OR consumer = :consumer::text)
ORDER BY started LIMIT :limit

-- name: effect_late
-- A result, also one that came back after all: it happened, whoever thought otherwise meanwhile.
UPDATE {p}effect SET state = 'done', note = :note, settled = clock_timestamp()
WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND state <> 'done'

-- name: effect_find
SELECT consumer, source, state FROM {p}effect
WHERE message_id = :message_id AND (:consumer::text IS NULL OR consumer = :consumer::text)
  AND (:source::text IS NULL OR source = :source::text)
ORDER BY consumer, source LIMIT 100

-- name: effects_count
SELECT state, count(*) FROM (
    SELECT state FROM {p}effect WHERE state IN ('started', 'parked') LIMIT :cap
) capped GROUP BY state

-- name: queued
-- The queue row of a key, and whether somebody holds it; locked, so that nobody takes it meanwhile.
SELECT q.seq, q.token IS NOT NULL AND q.due > statement_timestamp()
FROM {p}queue q JOIN {p}ledger l ON l.seq = q.seq
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id
FOR UPDATE OF q

-- name: exhume
-- A dead message back in the queue, in its old place, with a fresh budget. `unbury` goes with it.
INSERT INTO {p}queue (seq, consumer, source, message_id, type, fingerprint, key, payload, headers,
    content_type, provenance, received, due, lane, version, turn)
SELECT seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
    received, statement_timestamp(), lane, version, lane IS NULL
FROM {p}dead WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL
ON CONFLICT DO NOTHING

-- name: unbury
-- Only the message itself; a conflicting payload that lies beside it was never in the queue.
DELETE FROM {p}dead WHERE consumer = :consumer AND source = :source AND message_id = :message_id AND seq IS NOT NULL
