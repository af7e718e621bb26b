-- How far a partition is handled: see the same file for PostgreSQL.
CREATE TABLE {p}watermark (
    consumer TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    last INTEGER NOT NULL,
    topic_id TEXT NOT NULL DEFAULT '',
    digest BLOB NOT NULL,
    moved INTEGER NOT NULL,
    PRIMARY KEY (consumer, topic, partition)
) WITHOUT ROWID;
