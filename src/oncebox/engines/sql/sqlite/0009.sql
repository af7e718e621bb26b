-- What the guard left unfinished: see the same file for PostgreSQL.
CREATE INDEX IF NOT EXISTS {p}ledger_unfinished ON {p}ledger (consumer, source, message_id) WHERE state = 1;
