-- name: doctor_server
SELECT sqlite_version()

-- name: doctor_indexes
SELECT tbl_name, name, 1, 0 FROM sqlite_master WHERE type = 'index' ORDER BY tbl_name, name

-- name: doctor_leases
SELECT consumer, count(*), ({now} - min(due)) / 1000000.0
FROM (SELECT consumer, due FROM {p}queue
      WHERE token IS NOT NULL AND due < {now} - CAST(:seconds * 1000000 AS INTEGER) LIMIT :cap)
GROUP BY consumer ORDER BY consumer

-- name: doctor_sweep
SELECT ({now} - passed) / 1000000.0 FROM {p}sweep WHERE name = 'ledger' AND passed IS NOT NULL
