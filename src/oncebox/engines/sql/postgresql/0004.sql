-- Who changed what by hand, and why: one row per message that the action touched, in the same transaction.
CREATE TABLE {p}audit (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    act text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    who text NOT NULL,
    verb text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    filter text NOT NULL DEFAULT '{{}}',
    consumer text COLLATE "C" NOT NULL DEFAULT '',
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    result text NOT NULL
);
COMMENT ON COLUMN {p}audit.act IS 'all rows of one command share it';
CREATE INDEX audit_at ON {p}audit (at);
CREATE INDEX audit_message ON {p}audit (message_id);
