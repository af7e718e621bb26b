-- What the guard left unfinished waits for a person, and is found without reading the ledger, however large that is.
-- Where nobody can wait while the index is made, make it beforehand, CONCURRENTLY and under this name.
CREATE INDEX IF NOT EXISTS ledger_unfinished ON {p}ledger (consumer, source, message_id) WHERE state = 1;
