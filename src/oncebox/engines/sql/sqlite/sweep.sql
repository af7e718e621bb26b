-- name: sweep_lease
UPDATE {p}sweep SET holder = :holder, until = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE name = 'ledger' AND (holder = :holder OR until < {now})
RETURNING place, ({now} - passed) / 1000000.0, ({now} - cutoff) / 1000000.0,
          (SELECT coalesce(max(seq), 0) + 1 FROM {p}ledger)

-- name: sweep_move
UPDATE {p}sweep SET place = :place, until = {now} + CAST(:seconds * 1000000 AS INTEGER),
    passed = CASE WHEN :done THEN {now} ELSE passed END,
    cutoff = CASE WHEN :done THEN {now} - CAST(:behind * 1000000 AS INTEGER) ELSE cutoff END
WHERE name = 'ledger' AND holder = :holder AND until > {now}

-- name: sweep_free
UPDATE {p}sweep SET until = 0 WHERE name = 'ledger' AND holder = :holder

-- name: sweep_end
SELECT coalesce(max(seq), 0) + 1 FROM {p}ledger

-- name: low_note
INSERT INTO {p}low (consumer, at, seq)
SELECT c.value, {now}, coalesce((SELECT min(q.seq) FROM {p}queue q WHERE q.consumer = c.value),
                                (SELECT coalesce(max(seq), 0) + 1 FROM {p}ledger))
FROM json_each(:consumers) c
WHERE NOT EXISTS (SELECT 1 FROM {p}low l WHERE l.consumer = c.value
                  AND l.at > {now} - CAST(:seconds * 1000000 AS INTEGER))
ON CONFLICT DO NOTHING

-- name: low_drop
DELETE FROM {p}low
WHERE consumer = :consumer
  AND at < (SELECT max(m.at) FROM {p}low m WHERE m.consumer = :consumer
            AND m.at < {now} - CAST(:seconds * 1000000 AS INTEGER))

-- part: past
-- What is past its window there. What waits, is dead, unfinished or unknown is never among it.
FROM {p}ledger l
JOIN (SELECT json_extract(value, '$.consumer') AS consumer, json_extract(value, '$.seconds') AS seconds
      FROM json_each(:windows)) w ON w.consumer = l.consumer
WHERE l.seq >= :first AND l.seq < :last
  AND l.state <> 1
  AND CASE WHEN l.finished IS NOT NULL THEN l.finished < {now} - CAST(w.seconds * 1000000 AS INTEGER)
           ELSE coalesce(l.again, l.received) < {now} - CAST(w.seconds * 1000000 AS INTEGER)
                AND EXISTS (SELECT 1 FROM {p}low m WHERE m.consumer = l.consumer
                            AND m.at < {now} - CAST(w.seconds * 1000000 AS INTEGER))
                AND l.seq < (SELECT min(m.seq) FROM {p}low m WHERE m.consumer = l.consumer) END
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq)
  AND NOT EXISTS (SELECT 1 FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
                  AND d.message_id = l.message_id)
  AND NOT EXISTS (SELECT 1 FROM {p}effect e WHERE e.consumer = l.consumer AND e.source = l.source
                  AND e.message_id = l.message_id AND e.state IN ('started', 'parked'))

-- name: sweep_find
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state
{past}

-- name: sweep_drop
-- each: run once per row.
DELETE FROM {p}ledger WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: sweep_results
-- each: run once per row.
DELETE FROM {p}result WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: sweep_attempts
-- each: run once per row.
DELETE FROM {p}attempt WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: sweep_effects
-- each: run once per row.
DELETE FROM {p}effect WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: sweep_keys
SELECT consumer, key FROM {p}key
WHERE touched < {now} - CAST(:seconds * 1000000 AS INTEGER)
  AND blocked IS NULL AND gap IS NULL AND consumer = :consumer
ORDER BY key LIMIT :limit

-- name: sweep_keys_drop
DELETE FROM {p}key
WHERE consumer = :consumer AND key IN (SELECT value FROM json_each(:keys))
  AND NOT EXISTS (SELECT 1 FROM {p}queue q WHERE q.consumer = {p}key.consumer AND q.lane IS NOT NULL
                  AND q.lane = {p}key.key)

-- name: sweep_tally
DELETE FROM {p}tally WHERE minute < {now} - CAST(:seconds * 1000000 AS INTEGER)

-- name: sweep_kept
-- each: run once per row.
DELETE FROM {p}kept WHERE consumer = :consumer AND source = :source AND message_id = :message_id
