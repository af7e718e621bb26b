-- name: pick
-- Picks and marks in one small transaction before the writing one: there are no row locks here,
-- so a marker is what keeps others away, and it outlives a killed process until it is reaped.
INSERT INTO {p}hand (worker, slot, consumer, seqs, source, message_id, at)
VALUES (:worker, :slot, :consumer, (
    SELECT json_group_array(seq) FROM (
        SELECT seq FROM {p}queue
        WHERE consumer = :consumer AND deaths = 0 AND turn = 1 AND due <= {now}
          AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
          AND type NOT IN (SELECT value FROM json_each(:except))
          AND seq NOT IN (SELECT j.value FROM {p}hand h, json_each(h.seqs) j
                          WHERE h.worker <> :worker OR h.slot <> :slot)
        ORDER BY due, seq LIMIT :limit
    )
), NULL, NULL, {now})
ON CONFLICT (worker, slot) DO UPDATE
SET at = excluded.at, consumer = excluded.consumer, seqs = excluded.seqs, source = NULL, message_id = NULL
RETURNING seqs

-- name: due
-- Whether anything is due at all; asked before `pick`, so that an idle worker does not write.
SELECT 1 FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn = 1 AND due <= {now}
  AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
  AND type NOT IN (SELECT value FROM json_each(:except))
ORDER BY due, seq LIMIT 1

-- name: due_suspect
SELECT 1 FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn = 1 AND due <= {now}
  AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
  AND type NOT IN (SELECT value FROM json_each(:except))
ORDER BY due, seq LIMIT 1

-- name: pick_suspect
-- Picks and marks a suspect; alone.
INSERT INTO {p}hand (worker, slot, consumer, seqs, source, message_id, at)
VALUES (:worker, :slot, :consumer, (
    SELECT json_group_array(seq) FROM (
        SELECT seq FROM {p}queue
        WHERE consumer = :consumer AND deaths > 0 AND turn = 1 AND due <= {now}
          AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
          AND type NOT IN (SELECT value FROM json_each(:except))
          AND seq NOT IN (SELECT j.value FROM {p}hand h, json_each(h.seqs) j
                          WHERE h.worker <> :worker OR h.slot <> :slot)
        ORDER BY due, seq LIMIT 1
    )
), NULL, NULL, {now})
ON CONFLICT (worker, slot) DO UPDATE
SET at = excluded.at, consumer = excluded.consumer, seqs = excluded.seqs, source = NULL, message_id = NULL
RETURNING seqs

-- name: take
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn = 1 AND due <= {now}
  AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
  AND type NOT IN (SELECT value FROM json_each(:except))
ORDER BY due, seq
LIMIT :limit

-- name: take_suspect
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn = 1 AND due <= {now}
  AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
  AND type NOT IN (SELECT value FROM json_each(:except))
ORDER BY due, seq
LIMIT 1

-- name: take_unknown
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn = 1 AND due <= {now} AND received <= {now} - CAST(:age_seconds * 1000000 AS INTEGER)
  AND type NOT IN (SELECT value FROM json_each(:types))
ORDER BY due, seq
LIMIT :limit

-- name: take_unknown_suspect
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn = 1 AND due <= {now} AND received <= {now} - CAST(:age_seconds * 1000000 AS INTEGER)
  AND type NOT IN (SELECT value FROM json_each(:types))
ORDER BY due, seq
LIMIT :limit

-- name: taken
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue WHERE seq IN (SELECT value FROM json_each(:seqs)) ORDER BY due, seq

-- name: finish
DELETE FROM {p}queue WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: lease
UPDATE {p}queue SET token = :token, due = {now} + CAST(:seconds * 1000000 AS INTEGER), deaths = deaths + :deaths
WHERE seq = :seq

-- name: extend
UPDATE {p}queue SET due = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND token IN (SELECT value FROM json_each(:tokens))

-- name: finish_leased
DELETE FROM {p}queue WHERE seq = :seq AND token = :token

-- name: still_leased
SELECT seq FROM {p}queue WHERE seq = :seq AND token = :token

-- name: give_up
UPDATE {p}queue SET token = NULL, due = {now} WHERE seq = :seq AND token = :token

-- name: is_alive
SELECT 1 FROM {p}worker WHERE id = :id AND heartbeat > {now} - CAST(:seconds * 1000000 AS INTEGER)

-- name: postpone
UPDATE {p}queue SET due = {now} + CAST(:seconds * 1000000 AS INTEGER)
WHERE seq IN (SELECT value FROM json_each(:seqs))
