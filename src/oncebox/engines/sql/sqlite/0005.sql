-- Retention: see the same file for PostgreSQL. The walk goes by seq.
CREATE TABLE {p}sweep (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL DEFAULT '',
    until INTEGER NOT NULL DEFAULT 0,
    place INTEGER NOT NULL DEFAULT 0,
    passed INTEGER,
    cutoff INTEGER
) WITHOUT ROWID;
INSERT INTO {p}sweep (name) VALUES ('ledger');
CREATE TABLE {p}low (
    consumer TEXT NOT NULL,
    at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (consumer, at)
) WITHOUT ROWID;
