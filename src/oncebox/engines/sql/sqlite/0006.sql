-- Payloads that outlive their message, and replays: see the same file for PostgreSQL.
CREATE TABLE {p}kept (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    key TEXT,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    content_type TEXT NOT NULL,
    provenance TEXT NOT NULL
);
CREATE UNIQUE INDEX {p}kept_key ON {p}kept (consumer, source, message_id);
CREATE UNIQUE INDEX {p}kept_order ON {p}kept (consumer, seq);

CREATE TABLE {p}replay (
    run TEXT PRIMARY KEY,
    consumer TEXT NOT NULL,
    policy TEXT NOT NULL,
    origin TEXT NOT NULL,
    filter TEXT NOT NULL DEFAULT '{{}}',
    started INTEGER NOT NULL,
    ended INTEGER,
    result TEXT NOT NULL DEFAULT '',
    bound INTEGER NOT NULL,
    place INTEGER NOT NULL DEFAULT 0,
    mark TEXT NOT NULL DEFAULT '',
    handled INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    suppressed INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE UNIQUE INDEX {p}replay_open ON {p}replay (consumer) WHERE ended IS NULL;

ALTER TABLE {p}dead ADD COLUMN kept INTEGER NOT NULL DEFAULT 1;
