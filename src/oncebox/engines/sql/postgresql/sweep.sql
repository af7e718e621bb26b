-- name: sweep_lease
-- One process walks at a time. The second column: seconds since the last walk ended, the third: how far the
-- clock has run since the last one, the fourth: how much there is to walk.
UPDATE {p}sweep SET holder = :holder, until = clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE name = 'ledger' AND (holder = :holder OR until < clock_timestamp())
RETURNING place, extract(epoch FROM clock_timestamp() - passed)::float8,
          extract(epoch FROM clock_timestamp() - cutoff)::float8,
          (SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint FROM pg_class c
           WHERE c.oid = '{p}ledger'::regclass)

-- name: sweep_move
-- Only by the holder: whoever lost the lease writes nothing. A walk may take longer than its lease: each step
-- renews it.
UPDATE {p}sweep SET place = :place, until = clock_timestamp() + :seconds::float8 * interval '1 second',
    passed = CASE WHEN :done THEN clock_timestamp() ELSE passed END,
    cutoff = CASE WHEN :done THEN clock_timestamp() - :behind::float8 * interval '1 second' ELSE cutoff END
WHERE name = 'ledger' AND holder = :holder AND until > clock_timestamp()

-- name: sweep_free
UPDATE {p}sweep SET until = '-infinity' WHERE name = 'ledger' AND holder = :holder

-- name: sweep_end
SELECT pg_relation_size('{p}ledger'::regclass) / current_setting('block_size')::bigint

-- name: low_note
-- The oldest place that still waits, or the next one that will be given out.
INSERT INTO {p}low (consumer, at, seq)
SELECT c.consumer, statement_timestamp(),
       coalesce((SELECT min(q.seq) FROM {p}queue q WHERE q.consumer = c.consumer),
                (SELECT last_value + is_called::int FROM {p}queue_seq))
FROM unnest(:consumers::text[]) AS c(consumer)
WHERE NOT EXISTS (SELECT 1 FROM {p}low l WHERE l.consumer = c.consumer
                  AND l.at > statement_timestamp() - :seconds::float8 * interval '1 second')
ON CONFLICT DO NOTHING

-- name: low_drop
-- Marks before the window are needed no more, but for the last of them: it shows that the window is covered.
DELETE FROM {p}low l
WHERE l.consumer = :consumer
  AND l.at < (SELECT max(m.at) FROM {p}low m WHERE m.consumer = :consumer
              AND m.at < statement_timestamp() - :seconds::float8 * interval '1 second')

-- part: past
-- What is past its window there. What waits, is dead, unfinished or unknown is never among it.
FROM {p}[ledger] l
JOIN jsonb_to_recordset(:windows::jsonb) AS w(consumer text, seconds float8) ON w.consumer = l.consumer
LEFT JOIN LATERAL (
    SELECT min(m.seq) AS seq, bool_or(m.at < statement_timestamp() - w.seconds * interval '1 second') AS covered
    FROM {p}low m WHERE m.consumer = w.consumer
) low ON l.finished IS NULL
WHERE l.ctid >= format('(%s,0)', :first::bigint)::tid AND l.ctid < format('(%s,0)', :last::bigint)::tid
  AND l.state <> 1
  AND CASE WHEN l.finished IS NOT NULL THEN l.finished < statement_timestamp() - w.seconds * interval '1 second'
           ELSE coalesce(l.again, l.received) < statement_timestamp() - w.seconds * interval '1 second'
                AND low.covered AND l.seq < low.seq END
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
                  AND d.message_id = l.message_id)
  AND NOT EXISTS (SELECT 1 FROM {p}effect e WHERE e.consumer = l.consumer AND e.source = l.source
                  AND e.message_id = l.message_id AND e.state IN ('started', 'parked'))

-- name: sweep_find
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state
{past}
FOR UPDATE OF l SKIP LOCKED

-- name: sweep_purge
-- Find and delete in one statement, where nothing has to be written to an archive first: keys that travel to the
-- client and back again cost fifty times as much. By place, not by key: the row was locked just now, and one that
-- was changed meanwhile is not seen by this statement and waits for the next walk. The probes keep the planner from
-- reading all of a large table for the few that are there.
WITH past AS MATERIALIZED (
    SELECT l.ctid AS place
    {past}
    FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM {p}[ledger] WHERE ctid = ANY(ARRAY(SELECT place FROM past))
    RETURNING consumer, source, message_id, received
), results AS (
    DELETE FROM {p}result WHERE ctid = ANY(ARRAY(
        SELECT x.ctid FROM gone k CROSS JOIN LATERAL (
            SELECT t.ctid FROM {p}result t
            WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
        ) x))
), attempts AS (
    DELETE FROM {p}attempt WHERE ctid = ANY(ARRAY(
        SELECT x.ctid FROM gone k CROSS JOIN LATERAL (
            SELECT t.ctid FROM {p}attempt t
            WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
        ) x))
), effects AS (
    DELETE FROM {p}effect WHERE ctid = ANY(ARRAY(
        SELECT x.ctid FROM gone k CROSS JOIN LATERAL (
            SELECT t.ctid FROM {p}effect t
            WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
        ) x))
), payloads AS (
    DELETE FROM {p}kept WHERE ctid = ANY(ARRAY(
        SELECT x.ctid FROM gone k CROSS JOIN LATERAL (
            SELECT t.ctid FROM {p}kept t
            WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
        ) x))
)
SELECT consumer, count(*), max(received) FROM gone GROUP BY consumer

-- name: sweep_drop
DELETE FROM {p}ledger t USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id

-- name: sweep_results
DELETE FROM {p}result t USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id

-- name: sweep_attempts
DELETE FROM {p}attempt t USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id

-- name: sweep_effects
DELETE FROM {p}effect t USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id

-- name: sweep_keys
-- Lanes by arrival that nobody has used for a while; locked now, looked at again by the next statement.
SELECT consumer, key FROM {p}key
WHERE touched < statement_timestamp() - :seconds::float8 * interval '1 second'
  AND blocked IS NULL AND gap IS NULL AND consumer = :consumer
ORDER BY key LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: sweep_keys_drop
DELETE FROM {p}key k
WHERE k.consumer = :consumer AND k.key = ANY(:keys::text[])
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = k.consumer AND q.lane = k.key)

-- name: sweep_tally
DELETE FROM {p}tally WHERE minute < statement_timestamp() - :seconds::float8 * interval '1 second'

-- name: sweep_kept
DELETE FROM {p}kept t USING unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id
