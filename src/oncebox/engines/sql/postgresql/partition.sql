-- name: leaves
-- The ledger, its partitions, and how much is in them. A note on a partitioned consumer names it and what its ids are
-- like; one on a partition names its day.
WITH RECURSIVE tree AS (
    SELECT c.oid, c.relname, c.relkind, ''::name AS parent FROM pg_class c WHERE c.oid = '{p}ledger'::regclass
    UNION ALL
    SELECT c.oid, c.relname, c.relkind, tree.relname FROM tree
    JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid
)
SELECT oid::bigint, relname::text, parent::text, relkind = 'p',
       CASE WHEN parent <> '' THEN obj_description(oid, 'pg_class') END,
       CASE WHEN relkind = 'p' THEN 0 ELSE pg_relation_size(oid) / current_setting('block_size')::bigint END,
       extract(epoch FROM clock_timestamp())::float8
FROM tree ORDER BY oid

-- part: as_owner
-- What is made belongs to whom the ledger belongs to, whoever of those who may do so makes it.
SELECT set_config('role', pg_get_userbyid(relowner), true) FROM pg_class WHERE oid = '{p}ledger'::regclass

-- part: grants
-- Who may use the ledger may use a table that becomes a part of it.
DO $do$ DECLARE given record; BEGIN
    FOR given IN
        SELECT a.privilege_type AS what, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS whom
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = '{p}[like]'::regclass
    LOOP
        EXECUTE format('GRANT %s ON {p}[ledger] TO %s', given.what, given.whom);
    END LOOP;
END $do$

-- name: partition_make
-- Attached, not created in place: that would keep every claim of the consumer out. Only the rest is locked, which
-- gives up what has come for this day too early.
{as_owner};
CREATE TABLE {p}[ledger] (LIKE {p}[parent] INCLUDING DEFAULTS INCLUDING INDEXES);
{grants};
COMMENT ON TABLE {p}[ledger] IS :note;
LOCK TABLE {p}[rest] IN ACCESS EXCLUSIVE MODE;
WITH moved AS (DELETE FROM {p}[rest] WHERE message_id >= '[low]' AND message_id < '[high]' RETURNING *)
INSERT INTO {p}[ledger] SELECT * FROM moved;
ALTER TABLE {p}[parent] ATTACH PARTITION {p}[ledger] FOR VALUES FROM ('[low]') TO ('[high]')

-- name: partition_lock
-- Whoever writes to this day waits, and whoever holds a row of it to bury something beside; today's traffic is at
-- today's.
{as_owner};
LOCK TABLE {p}[ledger] IN EXCLUSIVE MODE

-- part: bare
-- What has left nothing beside the ledger. The walk deletes all of it together.
  AND NOT EXISTS (SELECT 1 FROM {p}result t WHERE t.consumer = l.consumer AND t.source = l.source
                  AND t.message_id = l.message_id)
  AND NOT EXISTS (SELECT 1 FROM {p}attempt t WHERE t.consumer = l.consumer AND t.source = l.source
                  AND t.message_id = l.message_id)
  AND NOT EXISTS (SELECT 1 FROM {p}effect t WHERE t.consumer = l.consumer AND t.source = l.source
                  AND t.message_id = l.message_id)
  AND NOT EXISTS (SELECT 1 FROM {p}kept t WHERE t.consumer = l.consumer AND t.source = l.source
                  AND t.message_id = l.message_id)

-- name: partition_spent
-- How many there are, how many of them may go at once, and the latest receipt of those. In most days that is all of them, and
-- to list what stays would take twice as long.
SELECT (SELECT count(*) FROM {p}[ledger]), count(*), max(l.received)
{past}
{bare}

-- name: partition_held
-- What must stay: all that is not shown to be past its window, and all that left something beside the ledger. No more
-- than can be put back quickly.
CREATE TEMPORARY TABLE oncebox_held ON COMMIT DROP AS
WITH spent AS MATERIALIZED (
    SELECT l.ctid AS place
    {past}
    {bare}
)
SELECT l.* FROM {p}[ledger] l WHERE NOT EXISTS (SELECT 1 FROM spent WHERE spent.place = l.ctid) LIMIT :limit

-- name: partition_told
-- How many there are, how many stay, and the latest receipt of the others.
SELECT count(*), (SELECT count(*) FROM pg_temp.oncebox_held),
       max(l.received) FILTER (WHERE h.message_id IS NULL)
FROM {p}[ledger] l LEFT JOIN pg_temp.oncebox_held h ON h.source = l.source AND h.message_id = l.message_id

-- name: partition_empty
TRUNCATE {p}[ledger]

-- name: partition_clear
TRUNCATE {p}[ledger];
INSERT INTO {p}[ledger] SELECT * FROM pg_temp.oncebox_held

-- name: partition_count
SELECT count(*) FROM (SELECT 1 FROM {p}[ledger] LIMIT :limit) few

-- name: partition_retire
-- For a moment the consumer's claims wait: for as long as the transaction's lock timeout, and no longer.
{as_owner};
LOCK TABLE {p}[ledger] IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {p}[parent] DETACH PARTITION {p}[ledger];
INSERT INTO {p}[rest] SELECT * FROM {p}[ledger];
DROP TABLE {p}[ledger]

-- name: partition_whole
-- The one table becomes the part for everybody who has not asked for partitions. Nothing is copied.
ALTER TABLE {p}ledger RENAME TO ledger_rest;
ALTER INDEX {p}ledger_pkey RENAME TO ledger_rest_pkey;
ALTER INDEX {p}ledger_unfinished RENAME TO ledger_rest_unfinished;
DROP TRIGGER refuse_early_commit ON {p}ledger_rest;
CREATE TABLE {p}ledger (LIKE {p}ledger_rest INCLUDING DEFAULTS INCLUDING COMMENTS,
    CONSTRAINT ledger_pkey PRIMARY KEY (consumer, source, message_id)) PARTITION BY LIST (consumer);
CREATE INDEX ledger_unfinished ON {p}ledger (consumer, source, message_id) WHERE state = 1;
{grants};
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT ON {p}ledger
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {p}refuse_early_commit();
ALTER TABLE {p}ledger ATTACH PARTITION {p}ledger_rest DEFAULT

-- name: partition_lock_all
{as_owner};
LOCK TABLE {p}ledger IN ACCESS EXCLUSIVE MODE

-- name: partition_parent
CREATE TABLE {p}[parent] (LIKE {p}ledger INCLUDING DEFAULTS, PRIMARY KEY (consumer, source, message_id))
    PARTITION BY RANGE (message_id);
CREATE INDEX [parent]_unfinished ON {p}[parent] (consumer, source, message_id) WHERE state = 1;
COMMENT ON TABLE {p}[parent] IS :note;
CREATE TABLE {p}[ledger] PARTITION OF {p}[parent] DEFAULT;
{grants}

-- name: partition_join
-- What the consumer has so far goes along: a key must not be in two places.
WITH moved AS (DELETE FROM {p}ledger_rest WHERE consumer = :consumer RETURNING *)
INSERT INTO {p}[parent] SELECT * FROM moved;
ALTER TABLE {p}ledger ATTACH PARTITION {p}[parent] FOR VALUES IN (:consumer)

-- name: partition_undo
ALTER TABLE {p}ledger DETACH PARTITION {p}[parent];
INSERT INTO {p}ledger_rest SELECT * FROM {p}[parent];
DROP TABLE {p}[parent]

-- name: partition_rows
SELECT count(*) FROM {p}ledger WHERE consumer = :consumer
