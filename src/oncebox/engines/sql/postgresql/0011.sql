-- The closing check as a procedure: CALL plans nothing and needs nothing prepared. One expression, because each statement of a
-- procedure costs as much as the check itself.
CREATE PROCEDURE {p}finished(token text) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncebox.claim', true) IS DISTINCT FROM token
       OR set_config('oncebox.finished', token, true) <> token THEN
        RAISE EXCEPTION 'oncebox: a handler must not end its transaction; the runtime does, after it returns'
            USING ERRCODE = '22012';
    END IF;
END $$;
