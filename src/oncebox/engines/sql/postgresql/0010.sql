-- When somebody put the message in line again. Its window counts from then on, and its first receipt stays what it was.
ALTER TABLE {p}ledger ADD COLUMN again timestamptz;
COMMENT ON COLUMN {p}ledger.again IS 'when it was last redriven; null where it never was';
