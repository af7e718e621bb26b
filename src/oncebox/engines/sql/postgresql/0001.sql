-- The tables of oncebox, split by how they change. {p} is the quoted schema and a dot.

-- One narrow, insert-only row per (consumer, source, message id): the only truth about duplicates.
-- Binary collation: ids are compared byte by byte, never by a locale.
CREATE TABLE {p}ledger (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    received timestamptz NOT NULL DEFAULT statement_timestamp(),
    finished timestamptz,
    seq bigint,
    state smallint NOT NULL DEFAULT 0,
    lazy boolean NOT NULL DEFAULT false,
    PRIMARY KEY (consumer, source, message_id)
);
COMMENT ON COLUMN {p}ledger.state IS '0 as queue and dead say, else done; 1 unfinished; 2 discarded; 3 stale; 4 suppressed';
COMMENT ON COLUMN {p}ledger.seq IS 'the row in queue, for messages that were stored';

CREATE TABLE {p}result (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (consumer, source, message_id)
);

CREATE TABLE {p}attempt (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    n integer NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    died boolean NOT NULL DEFAULT false,
    error_type text NOT NULL,
    error text NOT NULL,
    traceback text NOT NULL DEFAULT '',
    worker text NOT NULL DEFAULT '',
    PRIMARY KEY (consumer, source, message_id, n)
);

-- What waits. Deleted in the effects' own transaction, so it stays small beside the ledger.
CREATE SEQUENCE {p}queue_seq AS bigint CACHE 1;
CREATE TABLE {p}queue (
    seq bigint PRIMARY KEY DEFAULT nextval('{p}queue_seq'),
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    key text COLLATE "C",
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    content_type text NOT NULL,
    provenance text NOT NULL,
    received timestamptz NOT NULL DEFAULT statement_timestamp(),
    due timestamptz NOT NULL DEFAULT statement_timestamp(),
    attempts integer NOT NULL DEFAULT 0,
    deaths integer NOT NULL DEFAULT 0,
    token text COLLATE "C"
);
-- The predicates are literals, so that a generic plan can use them.
CREATE INDEX queue_due ON {p}queue (consumer, due, seq) WHERE deaths = 0;
CREATE INDEX queue_suspect ON {p}queue (consumer, due, seq) WHERE deaths > 0;

-- The fingerprint is in the key: a conflicting payload lies beside the original it clashes with.
CREATE TABLE {p}dead (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    type text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    content_type text NOT NULL,
    provenance text NOT NULL,
    received timestamptz NOT NULL,
    died timestamptz NOT NULL DEFAULT statement_timestamp(),
    reason text NOT NULL,
    error_type text NOT NULL DEFAULT '',
    error text NOT NULL DEFAULT '',
    traceback text NOT NULL DEFAULT '',
    attempts integer NOT NULL DEFAULT 0,
    seq bigint,
    PRIMARY KEY (consumer, source, message_id, fingerprint)
);
CREATE INDEX dead_recent ON {p}dead (consumer, died);

CREATE TABLE {p}tally (
    minute timestamptz NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (minute, consumer, type, outcome)
);

-- Who is alive, by the database's clock, and what each has in hand.
CREATE TABLE {p}worker (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    pid integer NOT NULL,
    started timestamptz NOT NULL DEFAULT statement_timestamp(),
    heartbeat timestamptz NOT NULL DEFAULT statement_timestamp()
);
CREATE TABLE {p}hand (
    worker text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    seqs bigint[] NOT NULL DEFAULT '{{}}',
    source text COLLATE "C",
    message_id text COLLATE "C",
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (worker, slot)
) WITH (fillfactor = 50);

-- A handler that ends its transaction by itself must not succeed. A runtime transaction sets
-- oncebox.claim when it opens and oncebox.finished just before it commits; whoever commits in
-- between is refused here. The guard sets neither: there the user commits.
CREATE FUNCTION {p}refuse_early_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncebox.finished', true) IS DISTINCT FROM current_setting('oncebox.claim', true) THEN
        RAISE EXCEPTION 'oncebox: a handler must not commit; the runtime does, after it returns'
            USING ERRCODE = 'OB001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT ON {p}ledger
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (current_setting('oncebox.claim', true) <> '')
    EXECUTE FUNCTION {p}refuse_early_commit();

-- A stored message inserts nothing when it is taken, so its transaction touches one row of its
-- worker's own here, for the same trigger. Unlogged: nothing in it is worth keeping.
CREATE UNLOGGED TABLE {p}fence (
    slot text COLLATE "C" PRIMARY KEY,
    n bigint NOT NULL
) WITH (fillfactor = 50);
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT OR UPDATE ON {p}fence
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (current_setting('oncebox.claim', true) <> '')
    EXECUTE FUNCTION {p}refuse_early_commit();
