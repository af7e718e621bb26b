-- Order: see the same file for PostgreSQL. Only what has the turn can be picked.
ALTER TABLE {p}queue ADD COLUMN lane TEXT;
ALTER TABLE {p}queue ADD COLUMN version INTEGER;
ALTER TABLE {p}queue ADD COLUMN turn INTEGER NOT NULL DEFAULT 1;
DROP INDEX {p}queue_due;
DROP INDEX {p}queue_suspect;
CREATE INDEX {p}queue_due ON {p}queue (consumer, due, seq) WHERE deaths = 0 AND turn = 1;
CREATE INDEX {p}queue_suspect ON {p}queue (consumer, due, seq) WHERE deaths > 0 AND turn = 1;
CREATE INDEX {p}queue_lane ON {p}queue (consumer, lane, version, seq) WHERE lane IS NOT NULL;
CREATE UNIQUE INDEX {p}queue_turn ON {p}queue (consumer, lane) WHERE turn = 1 AND lane IS NOT NULL;
ALTER TABLE {p}dead ADD COLUMN lane TEXT;
ALTER TABLE {p}dead ADD COLUMN version INTEGER;

CREATE TABLE {p}key (
    consumer TEXT NOT NULL,
    key TEXT NOT NULL,
    last INTEGER,
    skipped TEXT NOT NULL DEFAULT '[]',
    blocked INTEGER,
    source TEXT,
    message_id TEXT,
    gap INTEGER,
    touched INTEGER NOT NULL,
    PRIMARY KEY (consumer, key)
) WITHOUT ROWID;
CREATE INDEX {p}key_stuck ON {p}key (consumer, key) WHERE blocked IS NOT NULL OR gap IS NOT NULL;
