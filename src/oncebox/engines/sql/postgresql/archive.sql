-- name: sweep_look
-- As sweep_find, and locks nothing: what is past its window is written to the archive without a transaction
-- open meanwhile, and found again, locked, before it is deleted.
SELECT l.consumer, l.source, l.message_id, l.type, l.fingerprint, l.received, l.finished, l.state
{past}

-- name: archive_sizes
-- How much is to be read for each, so that no more is held than a part may have. Lengths are read without the bytes.
SELECT x.* FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
CROSS JOIN LATERAL (
    SELECT r.consumer, r.source, r.message_id, octet_length(r.body) AS bytes FROM {p}result r
    WHERE r.consumer = k.consumer AND r.source = k.source AND r.message_id = k.message_id
    UNION ALL
    SELECT p.consumer, p.source, p.message_id, octet_length(p.payload) + octet_length(p.headers) FROM {p}kept p
    WHERE p.consumer = k.consumer AND p.source = k.source AND p.message_id = k.message_id
    OFFSET 0
) x

-- name: archive_extras
-- What is kept beside the ledger's row: the result, and the payload. No row where there is neither.
SELECT k.consumer, k.source, k.message_id, r.body, p.seq, p.key, p.payload, p.headers, p.content_type, p.provenance
FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
LEFT JOIN LATERAL (
    SELECT t.body FROM {p}result t
    WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
) r ON true
LEFT JOIN LATERAL (
    SELECT t.* FROM {p}kept t
    WHERE t.consumer = k.consumer AND t.source = k.source AND t.message_id = k.message_id OFFSET 0
) p ON true
WHERE r.body IS NOT NULL OR p.payload IS NOT NULL

-- name: archive_known
SELECT x.* FROM unnest(:consumer::text[], :source::text[], :message_id::text[]) AS k(consumer, source, message_id)
CROSS JOIN LATERAL (
    SELECT l.consumer, l.source, l.message_id FROM {p}ledger l
    WHERE l.consumer = k.consumer AND l.source = k.source AND l.message_id = k.message_id
    OFFSET 0
) x

-- name: archive_restore
-- Finished now: the row has its whole window again, or the next walk would take it away.
INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished, state)
SELECT r.consumer, r.source, r.message_id, r.type, r.fingerprint,
       timestamptz 'epoch' + r.received * interval '1 microsecond', statement_timestamp(), r.state
FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :type::text[], :fingerprint::bytea[],
            :received::bigint[], :state::smallint[])
    AS r(consumer, source, message_id, type, fingerprint, received, state)
ORDER BY r.consumer, r.source, r.message_id
ON CONFLICT DO NOTHING
RETURNING consumer, source, message_id

-- name: archive_restore_results
INSERT INTO {p}result (consumer, source, message_id, body)
SELECT * FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :body::bytea[])
ON CONFLICT DO NOTHING

-- name: archive_restore_kept
-- In its old place, where this database gave that out and it is free; else in a new one. A place that has not been
-- given out yet would stand in the way of the message that gets it.
INSERT INTO {p}kept (consumer, source, message_id, seq, key, payload, headers, content_type, provenance)
OVERRIDING SYSTEM VALUE
SELECT r.consumer, r.source, r.message_id,
       CASE WHEN r.place <= pg_sequence_last_value(pg_get_serial_sequence('{p}kept', 'seq')::regclass)
                 AND NOT EXISTS (SELECT 1 FROM {p}kept t WHERE t.consumer = r.consumer AND t.seq = r.place)
            THEN r.place ELSE nextval(pg_get_serial_sequence('{p}kept', 'seq')) END,
       r.key, r.payload, r.headers, r.content_type, r.provenance
FROM unnest(:consumer::text[], :source::text[], :message_id::text[], :place::bigint[], :key::text[],
            :payload::bytea[], :headers::bytea[], :content_type::text[], :provenance::text[]) WITH ORDINALITY
    AS r(consumer, source, message_id, place, key, payload, headers, content_type, provenance, n)
ORDER BY r.n
ON CONFLICT DO NOTHING

-- name: forget
-- In the transaction that deletes: whoever finds a row gone finds this, too.
INSERT INTO {p}forgotten (consumer, received)
SELECT r.consumer, timestamptz 'epoch' + r.received * interval '1 microsecond'
FROM unnest(:consumer::text[], :received::bigint[]) AS r(consumer, received)
ORDER BY r.consumer
ON CONFLICT (consumer) DO UPDATE SET received = excluded.received
WHERE forgotten.received < excluded.received

-- name: forgotten
SELECT extract(epoch FROM received)::float8 FROM {p}forgotten WHERE consumer = :consumer
