-- How far back retention has forgotten: by consumer, the latest receipt among the rows that it has deleted. A
-- message that was made before that may be one of them.
CREATE TABLE {p}forgotten (
    consumer text COLLATE "C" PRIMARY KEY,
    received timestamptz NOT NULL
) WITH (fillfactor = 50);
-- What was forgotten before this table was there is not known: all that the last walk can have seen.
INSERT INTO {p}forgotten (consumer, received)
SELECT DISTINCT l.consumer, s.passed FROM {p}low l, {p}sweep s WHERE s.passed IS NOT NULL;
