-- name: doctor_server
-- reset_val is what a session of this role starts with, whatever ours has set for itself.
SELECT current_setting('server_version_num')::int,
       (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'),
       pg_is_in_recovery()
       OR (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only') = 'on',
       current_user::text, extract(epoch FROM clock_timestamp())::float8, pg_backend_pid()

-- name: doctor_indexes
SELECT c.relname::text, i.relname::text, x.indisvalid AND x.indisready AND x.indislive, x.indisprimary
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
WHERE c.relnamespace = to_regnamespace('{schema}')
ORDER BY 1, 2

-- name: doctor_triggers
SELECT c.relname::text, t.tgname::text, t.tgenabled IN ('O', 'A')
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace('{schema}') AND NOT t.tgisinternal
ORDER BY 1, 2

-- name: doctor_tables
-- Rows that are gone but not yet cleaned away, whether anybody cleans, and whether this role may do its work.
SELECT c.relname::text, coalesce(s.n_live_tup, 0)::bigint, coalesce(s.n_dead_tup, 0)::bigint,
       current_setting('autovacuum') = 'off'
       OR coalesce(array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(false|off|0|no)', false),
       has_table_privilege(c.oid, 'SELECT')
       AND (c.relname = 'version' OR has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
                                     AND has_table_privilege(c.oid, 'DELETE'))
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY 1

-- name: doctor_snapshots
-- Whoever keeps the server from cleaning up: what was deleted since is still read by every scan.
-- Not the server's own processes: what vacuums holds nothing up.
SELECT * FROM (
    SELECT 'process ' || pid AS who, coalesce(usename, '')::text AS role, coalesce(state, '') AS state,
           extract(epoch FROM statement_timestamp() - xact_start)::float8 AS seconds
    FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
      AND datname = current_database() AND backend_type = 'client backend'
    UNION ALL
    SELECT 'prepared transaction ' || gid, owner::text, 'prepared',
           extract(epoch FROM statement_timestamp() - prepared)::float8
    FROM pg_prepared_xacts WHERE database = current_database()
) held
WHERE seconds > :seconds::float8 ORDER BY seconds DESC LIMIT 5

-- name: doctor_leases
SELECT consumer, count(*), max(extract(epoch FROM statement_timestamp() - due))::float8
FROM (SELECT consumer, due FROM {p}queue
      WHERE token IS NOT NULL AND due < statement_timestamp() - :seconds::float8 * interval '1 second' LIMIT :cap) late
GROUP BY consumer ORDER BY consumer

-- name: doctor_sweep
SELECT extract(epoch FROM statement_timestamp() - passed)::float8 FROM {p}sweep
WHERE name = 'ledger' AND passed IS NOT NULL
