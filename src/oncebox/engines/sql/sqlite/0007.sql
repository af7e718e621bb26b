-- How far back retention has forgotten: see the same file for PostgreSQL.
CREATE TABLE {p}forgotten (
    consumer TEXT PRIMARY KEY,
    received INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO {p}forgotten (consumer, received)
SELECT DISTINCT l.consumer, s.passed FROM {p}low l, {p}sweep s WHERE s.passed IS NOT NULL;
