-- Who changed what by hand, and why: one row per message that the action touched, in the same transaction.
CREATE TABLE {p}audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    act TEXT NOT NULL,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    verb TEXT NOT NULL,
    reason TEXT NOT NULL,
    filter TEXT NOT NULL DEFAULT '{{}}',
    consumer TEXT NOT NULL DEFAULT '',
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    result TEXT NOT NULL
);
CREATE INDEX {p}audit_at ON {p}audit (at);
CREATE INDEX {p}audit_message ON {p}audit (message_id);
