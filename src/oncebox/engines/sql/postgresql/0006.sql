-- Payloads that outlive their message, and replays.

-- Written in the effects' own transaction under keep_payload="always", and dropped with the ledger row. seq is
-- given out where the message is finished, so that it tells the order in which the messages of a key took effect.
CREATE TABLE {p}kept (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    key text COLLATE "C",
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    content_type text NOT NULL,
    provenance text NOT NULL,
    PRIMARY KEY (consumer, source, message_id)
);
CREATE UNIQUE INDEX kept_order ON {p}kept (consumer, seq);

-- One row per replay run: what it covers, and how far it has come. Moved on in the transaction of the effects.
CREATE TABLE {p}replay (
    run text COLLATE "C" PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    policy text COLLATE "C" NOT NULL,
    origin text NOT NULL,
    filter text NOT NULL DEFAULT '{{}}',
    started timestamptz NOT NULL DEFAULT statement_timestamp(),
    ended timestamptz,
    result text NOT NULL DEFAULT '',
    bound bigint NOT NULL,
    place bigint NOT NULL DEFAULT 0,
    mark text NOT NULL DEFAULT '',
    handled bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    suppressed bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN {p}replay.bound IS 'the last of kept that was there when the run began: what came later is not covered';
COMMENT ON COLUMN {p}replay.place IS 'the last of kept, or the last line, that the run is through with';
CREATE UNIQUE INDEX replay_open ON {p}replay (consumer) WHERE ended IS NULL;

-- keep_payload="never": what died is on record, its payload is not.
ALTER TABLE {p}dead ADD COLUMN kept boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN {p}dead.kept IS 'false: the payload was not kept, by policy';
