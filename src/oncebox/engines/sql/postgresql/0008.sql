-- How far a partition is handled, where duplicates are told by the place of a message and not by its id. Moved in
-- the transaction of the effects, once each, whatever number of messages that handles.
CREATE TABLE {p}watermark (
    consumer text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    last bigint NOT NULL,
    topic_id text COLLATE "C" NOT NULL DEFAULT '',
    digest bytea NOT NULL,
    moved timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, topic, partition)
) WITH (fillfactor = 50);
COMMENT ON COLUMN {p}watermark.last IS 'this offset and all before it are handled, queued or dead';
COMMENT ON COLUMN {p}watermark.topic_id IS 'the cluster''s own id of the topic; empty where it tells none';
COMMENT ON COLUMN {p}watermark.digest IS 'of the message at that offset: another one there is another topic';
-- Nothing is inserted into the ledger, whose trigger refuses a handler's own COMMIT elsewhere.
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT OR UPDATE ON {p}watermark
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (current_setting('oncebox.claim', true) <> '')
    EXECUTE FUNCTION {p}refuse_early_commit();
