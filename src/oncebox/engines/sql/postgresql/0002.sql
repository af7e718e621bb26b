-- What goes out: messages for brokers, and calls to the outside world.

-- Written in the business transaction, so a row is visible to the relay if and only if that committed.
-- Taken by state, never by a cursor. Order per key is by seq, which the database gives out.
CREATE TABLE {p}outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot smallint NOT NULL,
    id text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    topic text COLLATE "C",
    key text COLLATE "C",
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    content_type text NOT NULL,
    created timestamptz NOT NULL DEFAULT statement_timestamp(),
    due timestamptz NOT NULL DEFAULT statement_timestamp(),
    attempts integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    settled timestamptz,
    lazy boolean NOT NULL DEFAULT false
);
COMMENT ON COLUMN {p}outbox.state IS '0 to be published; 1 published and kept; 2 parked';
-- By order, not by slot: a relay takes the first of many slots, and would have to sort all that waits.
CREATE INDEX outbox_pending ON {p}outbox (seq) WHERE state = 0;
CREATE INDEX outbox_failing ON {p}outbox (slot, due) WHERE state = 0 AND attempts > 0;
CREATE INDEX outbox_settled ON {p}outbox (state, settled) WHERE state > 0;

-- A slot is a share of the keys; it is leased to one relay at a time.
CREATE TABLE {p}slot (
    slot smallint PRIMARY KEY,
    relay text COLLATE "C" NOT NULL DEFAULT '',
    until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
INSERT INTO {p}slot (slot) SELECT generate_series(0, 31);

-- A call to the outside world: begun and not known to have ended is *unknown*, never guessed.
CREATE TABLE {p}effect (
    consumer text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    request bytea NOT NULL,
    state text NOT NULL DEFAULT 'started',
    calls integer NOT NULL DEFAULT 1,
    first_started timestamptz NOT NULL DEFAULT statement_timestamp(),
    started timestamptz NOT NULL DEFAULT statement_timestamp(),
    settled timestamptz,
    note text NOT NULL DEFAULT '',
    PRIMARY KEY (consumer, source, message_id)
);
CREATE INDEX effect_open ON {p}effect (consumer, started) WHERE state IN ('started', 'parked');
