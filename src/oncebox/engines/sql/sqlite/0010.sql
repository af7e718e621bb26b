-- When somebody put the message in line again: see the same file for PostgreSQL.
ALTER TABLE {p}ledger ADD COLUMN again INTEGER;
