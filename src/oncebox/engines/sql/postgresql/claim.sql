-- name: claim
-- Inserted complete: an UPDATE at the end costs a fifth of the rate, and the deferred trigger on
-- this table refuses a commit before finish, so a complete row still fails closed. DO NOTHING,
-- because a unique violation would abort the transaction. A second claim waits for the first.
-- The transaction's token is set along with it, which saves a statement.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished, state, lazy)
SELECT :consumer, :source, :message_id, :type, :fingerprint, statement_timestamp(), :state, :lazy
FROM set_config('oncebox.claim', :token, true)
ON CONFLICT DO NOTHING

-- name: claim_many
-- Sorted by key: two batches that insert the same ids in different order would deadlock.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
SELECT :consumer, r.source, r.message_id, r.type, r.fingerprint, statement_timestamp()
FROM unnest(:source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[])
    AS r(source, message_id, type, fingerprint)
ORDER BY r.source, r.message_id
ON CONFLICT DO NOTHING
RETURNING source, message_id

-- name: guard_claim
-- The guard's one statement. The second branch reads with the snapshot from before the insert, so
-- it sees a row only if an earlier statement put it there. No row at all is a race: look again,
-- never call it new.
-- The mark tells this transaction from the next: what comes before its dot stays for the whole
-- transaction, what comes after it is the claim's. It is kept twice: in oncebox.guard, which the
-- server can be asked for, and at the end of application_name, which the server reports to the
-- client whenever it changes, so that looking costs nothing. Both revert when the transaction
-- ends, and with a savepoint that takes the claim along.
-- A row that is visible and whose transaction is still in progress is our own; that of a
-- savepoint has an id of its own, after the transaction's.
WITH claimed AS (
    INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
    VALUES (:consumer, :source, :message_id, :type, :fingerprint, statement_timestamp())
    ON CONFLICT DO NOTHING
    RETURNING 1
), mark AS MATERIALIZED (
    SELECT set_config('oncebox.guard', m.value, true) AS value,
           set_config('application_name', left(split_part(current_setting('application_name'), ' oncebox:', 1), 34)
                      || ' oncebox:' || m.value, true) AS name
    FROM claimed, (
        SELECT coalesce(nullif(split_part(current_setting('oncebox.guard', true), '.', 1), ''), :token)
               || '.' || :serial AS value
    ) m
)
SELECT true AS first, ''::text AS type, ''::bytea AS fingerprint, 0::smallint AS state, false AS lazy,
       false AS queued, NULL::text AS reason, NULL::bytea AS body, true AS ours, mark.value AS mark
FROM mark WHERE mark.name IS NOT NULL
UNION ALL
SELECT false, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > statement_timestamp() - interval '1 minute',
       q.seq IS NOT NULL, d.reason, r.body,
       CASE WHEN own.since < 2147483648
            THEN pg_xact_status((own.top + own.since)::text::xid8) = 'in progress' ELSE false END, ''
FROM {p}ledger l
LEFT JOIN {p}result r USING (consumer, source, message_id)
LEFT JOIN {p}queue q ON q.seq = l.seq
LEFT JOIN {p}dead d ON (d.consumer, d.source, d.message_id, d.fingerprint)
                     = (l.consumer, l.source, l.message_id, l.fingerprint)
CROSS JOIN LATERAL (
    SELECT t.top, (l.xmin::text::bigint - t.top % 4294967296 + 4294967296) % 4294967296 AS since
    FROM (SELECT pg_current_xact_id_if_assigned()::text::bigint AS top) t
) own
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: guard_claim_many
-- guard_claim for a whole batch in one statement; sorted like claim_many.
WITH incoming AS MATERIALIZED (
    SELECT * FROM unnest(:source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[])
        AS r(source, message_id, type, fingerprint)
), claimed AS (
    INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
    SELECT :consumer, r.source, r.message_id, r.type, r.fingerprint, statement_timestamp()
    FROM incoming r
    ORDER BY r.source, r.message_id
    ON CONFLICT DO NOTHING
    RETURNING source, message_id
), mark AS MATERIALIZED (
    SELECT set_config('oncebox.guard', m.value, true) AS value,
           set_config('application_name', left(split_part(current_setting('application_name'), ' oncebox:', 1), 34)
                      || ' oncebox:' || m.value, true) AS name
    FROM (SELECT 1 FROM claimed LIMIT 1) any_claimed, (
        SELECT coalesce(nullif(split_part(current_setting('oncebox.guard', true), '.', 1), ''), :token)
               || '.' || :serial AS value
    ) m
)
SELECT source, message_id, true AS first, ''::text AS type, ''::bytea AS fingerprint, 0::smallint AS state,
       false AS lazy, false AS queued, NULL::text AS reason, NULL::bytea AS body, true AS ours, mark.value AS mark
FROM claimed, mark WHERE mark.name IS NOT NULL
UNION ALL
SELECT l.source, l.message_id, false, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > statement_timestamp() - interval '1 minute',
       q.seq IS NOT NULL, d.reason, r.body,
       CASE WHEN own.since < 2147483648
            THEN pg_xact_status((own.top + own.since)::text::xid8) = 'in progress' ELSE false END, ''
FROM incoming i
JOIN {p}ledger l ON l.consumer = :consumer AND l.source = i.source AND l.message_id = i.message_id
LEFT JOIN {p}result r ON r.consumer = l.consumer AND r.source = l.source AND r.message_id = l.message_id
LEFT JOIN {p}queue q ON q.seq = l.seq
LEFT JOIN {p}dead d ON d.consumer = l.consumer AND d.source = l.source
                   AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint
CROSS JOIN LATERAL (
    SELECT t.top, (l.xmin::text::bigint - t.top % 4294967296 + 4294967296) % 4294967296 AS since
    FROM (SELECT pg_current_xact_id_if_assigned()::text::bigint AS top) t
) own

-- name: mark_unfinished
-- The guard's body raised. If the user commits all the same, the next delivery must not be told
-- "duplicate": half an effect may exist.
UPDATE {p}ledger SET state = 1
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: mark_finished
-- A result was set after an earlier claim, or an unfinished mark is withdrawn.
UPDATE {p}ledger SET state = 0
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: unclaim
-- A batch goes on without its culprit: its claim goes, its attempt stays.
DELETE FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id

-- name: lookup_one
-- What is known about a key that turned out not to be new. Scalars and subqueries, no join: a plan that
-- was made while the ledger was small must not scan it when it has grown.
SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
       l.lazy AND l.received > statement_timestamp() - interval '1 minute' AS lazy,
       EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq) AS queued,
       (SELECT d.reason FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
        AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint) AS reason,
       (SELECT r.body FROM {p}result r WHERE r.consumer = l.consumer AND r.source = l.source
        AND r.message_id = l.message_id) AS body
FROM {p}ledger l
WHERE l.consumer = :consumer AND l.source = :source AND l.message_id = :message_id

-- name: lookup
-- The same for many. OFFSET 0 keeps the planner from turning the probes into a scan and a join.
SELECT x.* FROM unnest(:source::text[], :message_id::text[]) AS k(source, message_id)
CROSS JOIN LATERAL (
    SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
           l.lazy AND l.received > statement_timestamp() - interval '1 minute' AS lazy,
           EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq) AS queued,
           (SELECT d.reason FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
            AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint) AS reason,
           (SELECT r.body FROM {p}result r WHERE r.consumer = l.consumer AND r.source = l.source
            AND r.message_id = l.message_id) AS body
    FROM {p}ledger l
    WHERE l.consumer = :consumer AND l.source = k.source AND l.message_id = k.message_id
    OFFSET 0
) x

-- name: keep_result
INSERT INTO {p}result (consumer, source, message_id, body)
VALUES (:consumer, :source, :message_id, :body)
ON CONFLICT (consumer, source, message_id) DO UPDATE SET body = excluded.body

-- name: store
-- Ledger row and queue row in one statement, so that one exists if and only if the other does.
-- seq follows arrival; the ledger is locked in key order.
WITH incoming AS MATERIALIZED (
    SELECT nextval('{p}queue_seq') AS seq, r.*
    FROM (
        SELECT * FROM unnest(
            :source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[], :key::text[],
            :payload::bytea[], :headers::bytea[], :content_type::text[], :provenance::text[]
        ) WITH ORDINALITY
        AS r(source, message_id, type, fingerprint, key, payload, headers, content_type, provenance, n)
        ORDER BY n
    ) r
), claimed AS (
    INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, seq)
    SELECT :consumer, source, message_id, type, fingerprint, seq FROM incoming ORDER BY source, message_id
    ON CONFLICT DO NOTHING
    RETURNING seq
)
INSERT INTO {p}queue
    (seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance)
SELECT i.seq, :consumer, i.source, i.message_id, i.type, i.fingerprint, i.key, i.payload, i.headers,
       i.content_type, i.provenance
FROM incoming i JOIN claimed USING (seq)
ORDER BY i.seq
RETURNING source, message_id

-- name: vouch
-- Group durability: this statement's commit flushes everything committed before it, and the count
-- shows that those rows are still there to be vouched for. A commit that writes nothing flushes
-- nothing, hence the message.
SELECT (
    SELECT count(*)
    FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
    CROSS JOIN LATERAL (
        SELECT 1 FROM {p}ledger l
        WHERE l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id
        OFFSET 0
    ) x
), set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'oncebox', '')::text
