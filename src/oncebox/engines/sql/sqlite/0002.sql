-- What goes out: messages for brokers, and calls to the outside world.

CREATE TABLE {p}outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    slot INTEGER NOT NULL,
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    type TEXT NOT NULL,
    topic TEXT,
    key TEXT,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    content_type TEXT NOT NULL,
    created INTEGER NOT NULL,
    due INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    state INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    settled INTEGER,
    lazy INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX {p}outbox_pending ON {p}outbox (seq) WHERE state = 0;
CREATE INDEX {p}outbox_failing ON {p}outbox (slot, due) WHERE state = 0 AND attempts > 0;
CREATE INDEX {p}outbox_settled ON {p}outbox (state, settled) WHERE state > 0;

CREATE TABLE {p}slot (
    slot INTEGER PRIMARY KEY,
    relay TEXT NOT NULL DEFAULT '',
    until INTEGER NOT NULL DEFAULT 0
);
INSERT INTO {p}slot (slot)
WITH RECURSIVE n(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM n WHERE slot < 31) SELECT slot FROM n;

CREATE TABLE {p}effect (
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    token TEXT NOT NULL,
    key TEXT NOT NULL,
    request BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'started',
    calls INTEGER NOT NULL DEFAULT 1,
    first_started INTEGER NOT NULL,
    started INTEGER NOT NULL,
    settled INTEGER,
    note TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (consumer, source, message_id)
) WITHOUT ROWID;
CREATE INDEX {p}effect_open ON {p}effect (consumer, started) WHERE state IN ('started', 'parked');
