-- Order. A lane is what messages are ordered by: a consumer's key. At most one message of a lane has
-- the turn, and only what has the turn can be taken: exclusion and order by construction, across
-- workers and machines, and a lane's backlog is not even in the index that taking reads.
ALTER TABLE {p}queue ADD COLUMN lane text COLLATE "C", ADD COLUMN version bigint,
    ADD COLUMN turn boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN {p}queue.lane IS 'the key this consumer orders by; NULL: unordered, always has the turn';
COMMENT ON COLUMN {p}queue.version IS 'the place in the lane that the producer gave it; NULL: arrival order';
DROP INDEX {p}queue_due;
DROP INDEX {p}queue_suspect;
CREATE INDEX queue_due ON {p}queue (consumer, due, seq) WHERE deaths = 0 AND turn;
CREATE INDEX queue_suspect ON {p}queue (consumer, due, seq) WHERE deaths > 0 AND turn;
CREATE INDEX queue_lane ON {p}queue (consumer, lane, version, seq) WHERE lane IS NOT NULL;
-- Who has the turn is found without reading the backlog, and nobody can give it to two.
CREATE UNIQUE INDEX queue_turn ON {p}queue (consumer, lane) WHERE turn AND lane IS NOT NULL;
ALTER TABLE {p}dead ADD COLUMN lane text COLLATE "C", ADD COLUMN version bigint;

-- One row per lane. It is locked, not written, while messages come and go in arrival order; by
-- sequence it says how far the lane has come.
CREATE TABLE {p}key (
    consumer text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    last bigint,
    skipped bigint[] NOT NULL DEFAULT '{{}}',
    blocked timestamptz,
    source text COLLATE "C",
    message_id text COLLATE "C",
    gap timestamptz,
    touched timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 80);
COMMENT ON COLUMN {p}key.last IS 'the last version that was handled; NULL: not by sequence, or none yet';
COMMENT ON COLUMN {p}key.skipped IS 'versions that were passed over and are still handled if they come';
COMMENT ON COLUMN {p}key.blocked IS 'since when a dead head holds the lane up; source and message_id name it';
COMMENT ON COLUMN {p}key.gap IS 'since when what waits here waits for a version that is missing';
CREATE INDEX key_stuck ON {p}key (consumer, key) WHERE blocked IS NOT NULL OR gap IS NOT NULL;
