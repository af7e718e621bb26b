-- The closing check as a procedure. CALL plans nothing, needs nothing prepared, and takes half the time of a SELECT.
CREATE PROCEDURE {p}finished(token text) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncebox.claim', true) IS DISTINCT FROM token THEN
        RAISE EXCEPTION 'oncebox: a handler must not end its transaction; the runtime does, after it returns'
            USING ERRCODE = '22012';
    END IF;
    PERFORM set_config('oncebox.finished', token, true);
END $$;
