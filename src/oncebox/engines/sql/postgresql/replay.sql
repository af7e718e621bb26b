-- name: keep
-- In the effects' own transaction, and in the order of their taking effect: seq is given out row by row.
INSERT INTO {p}kept (consumer, source, message_id, key, payload, headers, content_type, provenance)
SELECT :consumer, r.source, r.message_id, r.key, r.payload, r.headers, r.content_type, r.provenance
FROM unnest(:source::text[], :message_id::text[], :key::text[], :payload::bytea[], :headers::bytea[],
            :content_type::text[], :provenance::text[]) WITH ORDINALITY
    AS r(source, message_id, key, payload, headers, content_type, provenance, n)
ORDER BY r.n
ON CONFLICT DO NOTHING

-- name: replay_quiet
-- Waits for whoever is about to finish a message, and keeps others from it until the run's beginning is
-- committed: what is kept then is what the run covers, and whatever is finished later is not.
LOCK TABLE {p}kept IN EXCLUSIVE MODE

-- name: replay_bound
-- The last place that was given out to anybody, and what comes before the first that is still kept here, if any.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('{p}kept', 'seq')::regclass), 0),
       (SELECT min(seq) - 1 FROM {p}kept WHERE consumer = :consumer)

-- name: replay_begin
-- No row: this consumer has a run already.
INSERT INTO {p}replay (run, consumer, policy, origin, filter, bound, place)
VALUES (:run, :consumer, :policy, :origin, :filter, :bound, :place)
ON CONFLICT DO NOTHING

-- name: replay_open
SELECT run, policy, origin, filter, bound, place, mark, handled, skipped, failed, suppressed
FROM {p}replay WHERE consumer = :consumer AND ended IS NULL

-- name: replay_hold
-- Two processes at one run take turns, and the second finds that the place is not where it thought.
SELECT place FROM {p}replay WHERE run = :run AND ended IS NULL FOR UPDATE

-- name: replay_move
UPDATE {p}replay SET place = :place, mark = :mark, handled = handled + :handled, skipped = skipped + :skipped,
    failed = failed + :failed, suppressed = suppressed + :suppressed
WHERE run = :run

-- name: replay_end
UPDATE {p}replay SET ended = statement_timestamp(), result = :result WHERE run = :run AND ended IS NULL

-- name: replay_page
SELECT k.seq, k.source, k.message_id, l.type, l.fingerprint, k.key, k.payload, k.headers, k.content_type, k.provenance
FROM {p}kept k
JOIN {p}ledger l ON l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id
WHERE k.consumer = :consumer AND k.seq > :place AND k.seq <= :bound
  AND (:ids::text[] IS NULL OR k.message_id = ANY(:ids::text[]))
  AND (:source::text IS NULL OR k.source = :source::text)
  AND (:type::text IS NULL OR l.type = :type::text)
  AND (:key::text IS NULL OR k.key = :key::text)
  AND (:since::float8 IS NULL OR l.received >= to_timestamp(:since::float8))
  AND (:until::float8 IS NULL OR l.received < to_timestamp(:until::float8))
ORDER BY k.seq LIMIT :limit

-- name: replay_known
-- How a message of a file stands here: whether it is done, and when it was kept.
SELECT l.source, l.message_id, l.fingerprint, l.state,
       EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq)
       OR EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
                  AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint),
       (SELECT k.seq FROM {p}kept k WHERE k.consumer = l.consumer AND k.source = l.source
        AND k.message_id = l.message_id)
FROM unnest(:source::text[], :message_id::text[]) AS r(source, message_id)
JOIN {p}ledger l ON l.consumer = :consumer AND l.source = r.source AND l.message_id = r.message_id

-- name: replay_changes
-- What this transaction has done to the user's tables so far; with what the session has not reported yet of
-- earlier ones, which a second look takes away again.
SELECT schemaname || '.' || relname, n_tup_ins, n_tup_upd, n_tup_del
FROM pg_stat_xact_user_tables
WHERE '"' || schemaname || '"' <> '{schema}' AND n_tup_ins + n_tup_upd + n_tup_del > 0

-- name: replay_counts
SELECT consumer, sum(handled)::bigint, sum(suppressed)::bigint FROM {p}replay GROUP BY consumer
