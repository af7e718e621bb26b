-- Retention. What is past its window is found by walking the ledger's pages, a few at a time, so that the
-- hot path pays for no index; `sweep` says how far the walk has come, and who walks.
CREATE TABLE {p}sweep (
    name text COLLATE "C" PRIMARY KEY,
    holder text COLLATE "C" NOT NULL DEFAULT '',
    until timestamptz NOT NULL DEFAULT '-infinity',
    place bigint NOT NULL DEFAULT 0,
    passed timestamptz,
    cutoff timestamptz
);
COMMENT ON COLUMN {p}sweep.cutoff IS 'the clock that the last walk went by; it may not run ahead';
INSERT INTO {p}sweep (name) VALUES ('ledger');

-- When a stored message was finished is written nowhere: an update of its ledger row would cost a fifth of
-- the rate. Instead, from time to time, the oldest place that still waits is noted. A row is past its
-- window if it was older than every mark that the window has.
CREATE TABLE {p}low (
    consumer text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (consumer, at)
);
