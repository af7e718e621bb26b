-- name: claim
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished, state, lazy)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, {now}, {now}, :state, :lazy)
ON CONFLICT DO NOTHING

-- name: claim_many
-- whole: all rows in one statement, a quarter of the time of one each; there is one writer, so order does not matter.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, {now}, {now})
ON CONFLICT DO NOTHING
RETURNING source, message_id

-- name: guard_claim
-- Differs by necessity: there are no settings to mark a transaction with, so the mark is empty and
-- the flow sets a savepoint.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, {now}, {now})
ON CONFLICT DO NOTHING
RETURNING ''

-- name: guard_claim_many
-- each: run once per row.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, {now}, {now})
ON CONFLICT DO NOTHING
RETURNING source, message_id, ''

-- name: guard_lookup
-- each: run once per row. Whose transaction wrote it can't be asked here: the last column is NULL.
SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > {now} - 60000000 AS lazy,
       q.seq IS NOT NULL AS queued, d.reason, r.body, NULL AS ours
FROM {p}ledger l
LEFT JOIN {p}queue q ON q.seq = l.seq
LEFT JOIN {p}dead d ON d.consumer = l.consumer AND d.source = l.source
                   AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint
LEFT JOIN {p}result r ON r.consumer = l.consumer AND r.source = l.source AND r.message_id = l.message_id
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: mark_unfinished
UPDATE {p}ledger SET state = 1
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: mark_finished
UPDATE {p}ledger SET state = 0
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: unclaim
DELETE FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: lookup_one
SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > {now} - 60000000 AS lazy,
       q.seq IS NOT NULL AS queued, d.reason, r.body
FROM {p}ledger l
LEFT JOIN {p}queue q ON q.seq = l.seq
LEFT JOIN {p}dead d ON d.consumer = l.consumer AND d.source = l.source
                   AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint
LEFT JOIN {p}result r ON r.consumer = l.consumer AND r.source = l.source AND r.message_id = l.message_id
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: lookup
-- each: run once per row.
SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > {now} - 60000000 AS lazy,
       q.seq IS NOT NULL AS queued, d.reason, r.body
FROM {p}ledger l
LEFT JOIN {p}queue q ON q.seq = l.seq
LEFT JOIN {p}dead d ON d.consumer = l.consumer AND d.source = l.source
                   AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint
LEFT JOIN {p}result r ON r.consumer = l.consumer AND r.source = l.source AND r.message_id = l.message_id
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: hold
-- Whether the row is still as it was looked at; there is one writer at a time.
SELECT 1 FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
  AND fingerprint = :fingerprint AND state = :state

-- name: keep_result
INSERT INTO {p}result (consumer, source, message_id, body)
VALUES (:consumer, :source, :message_id, :body)
ON CONFLICT (consumer, source, message_id) DO UPDATE SET body = excluded.body

-- name: store
-- each: run once per row. Differs by necessity: two statements, because SQLite has no INSERT in a
-- CTE; the second runs only if the first returned its row, with what it returned.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, {now})
ON CONFLICT DO NOTHING
RETURNING seq;
INSERT INTO {p}queue
    (seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
     received, due, lane, version, turn)
VALUES (:seq, :consumer, :source, :message_id, :type, :fingerprint, :key, :payload, :headers, :content_type,
    :provenance, {now}, {now}, :lane, :version, :lane IS NULL)
RETURNING source, message_id

-- name: vouch
-- each: run once per row. A commit at synchronous=FULL syncs the whole log, so what was committed
-- before it is on disk too; the driver raises the setting around this statement.
UPDATE {p}ledger SET lazy = lazy
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
RETURNING 1
