-- The ledger's trigger that refuses an early commit has no condition any more: PostgreSQL reads, plans and compiles one anew for
-- every statement that inserts, which cost more than the call that it saved the guard. The function looks by itself
-- whether the transaction is a runtime's. Only the ledger is locked: with a second table, the migration and a worker that has
-- both in hand would wait for each other.
CREATE OR REPLACE FUNCTION {p}refuse_early_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncebox.claim', true) <> ''
       AND current_setting('oncebox.finished', true) IS DISTINCT FROM current_setting('oncebox.claim', true) THEN
        RAISE EXCEPTION 'oncebox: a handler must not commit; the runtime does, after it returns'
            USING ERRCODE = 'OB001';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER refuse_early_commit ON {p}ledger;
CREATE CONSTRAINT TRIGGER refuse_early_commit AFTER INSERT ON {p}ledger
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {p}refuse_early_commit();

-- The guard's claim where it opens the transaction. `shown` is what application_name is then, or null where the key is known.
CREATE PROCEDURE {p}guard_open(
    consumer text, source text, message_id text, type text, fingerprint bytea, name text, mark text, INOUT shown text
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, finished)
    VALUES (guard_open.consumer, guard_open.source, guard_open.message_id, guard_open.type, guard_open.fingerprint,
            statement_timestamp())
    ON CONFLICT DO NOTHING;
    IF FOUND AND set_config('oncebox.guard', mark, true) = mark THEN
        shown := set_config('application_name', name, true);
    END IF;
END $$;
-- Whoever may write to the ledger may claim: it runs with the caller's own rights.
GRANT EXECUTE ON PROCEDURE {p}guard_open TO PUBLIC;
