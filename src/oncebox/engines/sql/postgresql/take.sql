-- name: due
-- Whether anything is due at all: what an idle worker asks, so that it neither begins nor writes.
-- Ordered, or the planner reads the whole table whenever nothing is due.
SELECT 1 FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn AND due <= statement_timestamp()
  AND (:types::text[] IS NULL OR type = ANY(:types::text[])) AND type <> ALL(:except::text[])
ORDER BY due, seq LIMIT 1

-- name: due_suspect
SELECT 1 FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn AND due <= statement_timestamp()
  AND (:types::text[] IS NULL OR type = ANY(:types::text[])) AND type <> ALL(:except::text[])
ORDER BY due, seq LIMIT 1

-- name: take
-- The head of the line that nobody has. statement_timestamp() is the database's clock and stable,
-- so it can bound the index scan; clock_timestamp() is volatile and could not.
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn AND due <= statement_timestamp()
  AND (:types::text[] IS NULL OR type = ANY(:types::text[])) AND type <> ALL(:except::text[])
ORDER BY due, seq
LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: take_suspect
-- A message that was in the hands of a process that died runs alone.
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn AND due <= statement_timestamp()
  AND (:types::text[] IS NULL OR type = ANY(:types::text[])) AND type <> ALL(:except::text[])
ORDER BY due, seq
LIMIT 1
FOR UPDATE SKIP LOCKED

-- name: take_unknown
-- Types that nobody here handles, past the time a rolling deployment may take.
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths = 0 AND turn AND due <= statement_timestamp()
  AND received <= statement_timestamp() - :age_seconds::float8 * interval '1 second'
  AND NOT type = ANY(:types::text[])
ORDER BY due, seq
LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: take_unknown_suspect
SELECT seq, source, message_id, type, fingerprint, key, payload, headers, content_type, provenance,
       attempts, deaths, token, lane, version
FROM {p}queue
WHERE consumer = :consumer AND deaths > 0 AND turn AND due <= statement_timestamp()
  AND received <= statement_timestamp() - :age_seconds::float8 * interval '1 second'
  AND NOT type = ANY(:types::text[])
ORDER BY due, seq
LIMIT :limit
FOR UPDATE SKIP LOCKED

-- name: fence
-- Touches this worker's own row, so that the deferred trigger guards a transaction that takes.
INSERT INTO {p}fence (slot, n) VALUES (:slot, 1) ON CONFLICT (slot) DO UPDATE SET n = fence.n + 1

-- name: finish
DELETE FROM {p}queue WHERE seq = ANY(:seqs::bigint[])

-- name: lease
-- A lease is a due time in the future and a token: when it lapses, the row is simply due again.
UPDATE {p}queue SET token = :token, due = clock_timestamp() + :seconds::float8 * interval '1 second',
    deaths = deaths + :deaths::int
WHERE seq = :seq

-- name: extend
-- Only by the holder: a lease that was lost stays lost.
UPDATE {p}queue SET due = clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE seq = ANY(:seqs::bigint[]) AND token = ANY(:tokens::text[])

-- name: finish_leased
-- The fence of a long handler: no row means that another worker took over.
DELETE FROM {p}queue WHERE seq = :seq AND token = :token

-- name: still_leased
-- Locks the row, so that nobody can take over between the check and the commit.
SELECT seq FROM {p}queue WHERE seq = :seq AND token = :token FOR UPDATE

-- name: give_up
-- By the holder only: it could not finish, and says so instead of letting the lease lapse.
UPDATE {p}queue SET token = NULL, due = clock_timestamp() WHERE seq = :seq AND token = :token

-- name: is_alive
SELECT 1 FROM {p}worker
WHERE id = :id AND heartbeat > statement_timestamp() - :seconds::float8 * interval '1 second'

-- name: postpone
-- Somebody else's marker names it: leave it until that somebody is heard of or declared dead.
UPDATE {p}queue SET due = clock_timestamp() + :seconds::float8 * interval '1 second'
WHERE seq = ANY(:seqs::bigint[])
