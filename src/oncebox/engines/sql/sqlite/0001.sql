-- The tables of oncebox on SQLite. {p} is the prefix. Times are microseconds since 1970, UTC.

-- Differs by necessity: seq is the rowid, because SQLite has no sequences; AUTOINCREMENT, because
-- a plain rowid would be used again after a purge and two messages would share a place in line.
CREATE TABLE {p}ledger (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    received INTEGER NOT NULL,
    finished INTEGER,
    state INTEGER NOT NULL DEFAULT 0,
    lazy INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX {p}ledger_key ON {p}ledger (consumer, source, message_id);

CREATE TABLE {p}result (
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (consumer, source, message_id)
) WITHOUT ROWID;

CREATE TABLE {p}attempt (
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    at INTEGER NOT NULL,
    died INTEGER NOT NULL DEFAULT 0,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL,
    traceback TEXT NOT NULL DEFAULT '',
    worker TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (consumer, source, message_id, n)
) WITHOUT ROWID;

CREATE TABLE {p}queue (
    seq INTEGER PRIMARY KEY,
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    type TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    content_type TEXT NOT NULL,
    provenance TEXT NOT NULL,
    received INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    token TEXT
);
CREATE INDEX {p}queue_due ON {p}queue (consumer, due, seq) WHERE deaths = 0;
CREATE INDEX {p}queue_suspect ON {p}queue (consumer, due, seq) WHERE deaths > 0;

CREATE TABLE {p}dead (
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    type TEXT NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    content_type TEXT NOT NULL,
    provenance TEXT NOT NULL,
    received INTEGER NOT NULL,
    died INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error_type TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    traceback TEXT NOT NULL DEFAULT '',
    attempts INTEGER NOT NULL DEFAULT 0,
    seq INTEGER,
    PRIMARY KEY (consumer, source, message_id, fingerprint)
);
CREATE INDEX {p}dead_recent ON {p}dead (consumer, died);

CREATE TABLE {p}tally (
    minute INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    type TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (minute, consumer, type, outcome)
) WITHOUT ROWID;

CREATE TABLE {p}worker (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE {p}hand (
    worker TEXT NOT NULL,
    slot INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    seqs TEXT NOT NULL DEFAULT '[]',
    source TEXT,
    message_id TEXT,
    at INTEGER NOT NULL,
    PRIMARY KEY (worker, slot)
) WITHOUT ROWID;
