-- name: claim
-- Inserted complete: an UPDATE at the end costs a fifth of the rate, and the deferred trigger on
-- this table refuses a commit before finish, so a complete row still fails closed. DO NOTHING,
-- because a unique violation would abort the transaction. A second claim waits for the first.
-- The transaction's token is set along with it, which saves a statement; by CASE, because the planner
-- drops a call from an OR that is true without it.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished, state, lazy)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, statement_timestamp(), :state,
        CASE WHEN set_config('oncebox.claim', :token, true) <> '' THEN :lazy::boolean END)
ON CONFLICT DO NOTHING

-- name: finished
-- The closing check, sent with COMMIT: divides by zero where the transaction is not the one that was opened.
CALL {p}finished(:token)

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
-- The guard's one statement: an INSERT, and nothing that a new key would pay for without needing it.
-- No row means that the key is known; guard_lookup says what is known.
-- The mark tells this transaction from the next: what comes before its dot stays for the whole
-- transaction, what comes after it is the claim's. It is kept twice: in oncebox.guard, which the
-- server can be asked for, and at the end of application_name, which the server reports to the
-- client whenever it changes, so that looking costs nothing. Both revert when the transaction
-- ends, and with a savepoint that takes the claim along.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING set_config('application_name',
              left(split_part(current_setting('application_name'), ' oncebox:', 1), 34) || ' oncebox:'
              || set_config('oncebox.guard',
                            coalesce(nullif(split_part(current_setting('oncebox.guard', true), '.', 1), ''), :token)
                            || '.' || :serial, true), true)

-- name: guard_open
-- guard_claim where it is what opens the transaction: nothing can carry a mark yet, so that the client can write it out, and the
-- server has less to plan. For servers before 17, whose statistics keep every CALL with its arguments.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
VALUES (:consumer, :source, :message_id, :type, :fingerprint, statement_timestamp())
ON CONFLICT DO NOTHING
RETURNING set_config('application_name', :name, true), set_config('oncebox.guard', :mark, true)

-- name: guard_call
-- The same as a procedure: BEGIN travels with the claim as text, and the text of an INSERT is planned each time.
CALL {p}guard_open(:consumer, :source, :message_id, :type, :fingerprint, :name, :mark, NULL)

-- name: guard_claim_many
-- guard_claim for a whole batch in one statement; sorted like claim_many.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
SELECT :consumer, r.source, r.message_id, r.type, r.fingerprint, statement_timestamp()
FROM unnest(:source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[])
    AS r(source, message_id, type, fingerprint)
ORDER BY r.source, r.message_id
ON CONFLICT DO NOTHING
RETURNING source, message_id, set_config('application_name',
              left(split_part(current_setting('application_name'), ' oncebox:', 1), 34) || ' oncebox:'
              || set_config('oncebox.guard',
                            coalesce(nullif(split_part(current_setting('oncebox.guard', true), '.', 1), ''), :token)
                            || '.' || :serial, true), true)

-- name: guard_lookup
-- lookup, and whether the row is this transaction's own: visible, while the transaction that wrote it
-- is still in progress. A savepoint's rows carry an id of their own, after the transaction's.
SELECT x.* FROM unnest(:source::text[], :message_id::text[]) AS k(source, message_id)
CROSS JOIN LATERAL (
    SELECT l.source, l.message_id, l.type, l.fingerprint, l.state,
           l.lazy AND l.received > statement_timestamp() - interval '1 minute' AS lazy,
           EXISTS (SELECT 1 FROM {p}queue q WHERE q.seq = l.seq) AS queued,
           (SELECT d.reason FROM {p}dead d WHERE d.consumer = l.consumer AND d.source = l.source
            AND d.message_id = l.message_id AND d.fingerprint = l.fingerprint) AS reason,
           (SELECT r.body FROM {p}result r WHERE r.consumer = l.consumer AND r.source = l.source
            AND r.message_id = l.message_id) AS body,
           CASE WHEN own.since < 2147483648
                THEN pg_xact_status((own.top + own.since)::text::xid8) = 'in progress' ELSE false END AS ours
    FROM {p}ledger l
    CROSS JOIN LATERAL (
        SELECT t.top, (l.xmin::text::bigint - t.top % 4294967296 + 4294967296) % 4294967296 AS since
        FROM (SELECT pg_current_xact_id_if_assigned()::text::bigint AS top) t
    ) own
    WHERE l.consumer = :consumer AND l.source = k.source AND l.message_id = k.message_id
    OFFSET 0
) x

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

-- name: hold
-- Whether the row is still as it was looked at; then nobody changes or deletes it before this transaction ends. Not
-- waited for: who has it now is about to change it.
SELECT 1 FROM {p}ledger
WHERE consumer = :consumer AND source = :source AND message_id = :message_id
  AND fingerprint = :fingerprint AND state = :state
FOR SHARE SKIP LOCKED

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
            :payload::bytea[], :headers::bytea[], :content_type::text[], :provenance::text[],
            :lane::text[], :version::bigint[]
        ) WITH ORDINALITY
        AS r(source, message_id, type, fingerprint, key, payload, headers, content_type, provenance, lane, version, n)
        ORDER BY n
    ) r
), claimed AS (
    INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, seq)
    SELECT :consumer, source, message_id, type, fingerprint, seq FROM incoming ORDER BY source, message_id
    ON CONFLICT DO NOTHING
    RETURNING seq
)
INSERT INTO {p}queue
    (seq, consumer, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
     lane, version, turn)
SELECT i.seq, :consumer, i.source, i.message_id, i.type, i.fingerprint, i.key, i.payload, i.headers,
       i.content_type, i.provenance, i.lane, i.version, i.lane IS NULL
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
