"""How bad a finding is, and what a database alone can show: what it is like, and what stands still in it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad it is."""

    NOTE = "note"
    """Good to know."""
    WARNING = "warning"
    """It works, and will not for ever."""
    ERROR = "error"
    """Messages are lost, doubled or stand still, or the app does not start."""


NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


class Kind(NamedTuple):
    """What all findings of one code have in common."""

    severity: Severity
    why: str
    do: str


DATABASE = {
    "database-unreachable": Kind(
        ERROR,
        "Nothing can be received, handled or looked at.",
        "Check the URL, the server and the network between; the text says what the driver saw.",
    ),
    "database-refused": Kind(
        ERROR,
        "The app does not start: on an engine in autocommit, or one that only reads, claim and effect would part; "
        "and what a role may not see it can't use.",
        "Change the engine or the role's rights as the text says.",
    ),
    "database-old": Kind(
        ERROR,
        "oncebox needs what older servers do not have: PostgreSQL 14, SQLite 3.38.",
        "Upgrade the server.",
    ),
    "schema-missing": Kind(
        ERROR,
        "Without its tables oncebox can't tell a duplicate from a first.",
        "Run oncebox migrate as the text says.",
    ),
    "schema-outdated": Kind(
        ERROR,
        "The app does not start on tables of another version.",
        "Older tables: oncebox migrate. Newer ones: upgrade oncebox here.",
    ),
    "isolation": Kind(
        WARNING,
        "The app sets READ COMMITTED for itself, but the guard works in your transactions: there, two deliveries at "
        "once end in serialization failures that you must retry.",
        "Set default_transaction_isolation to 'read committed' for the role or the database, or retry on 40001.",
    ),
    "durability-off": Kind(
        ERROR,
        "A commit is acknowledged before it is on disk: after a crash, a message was acked and its effect is gone.",
        'Set synchronous_commit to on for the role or the database; durability="group" is the safe way to wait less.',
    ),
    "read-only": Kind(
        ERROR,
        "Every message writes a ledger row; on a standby, or where transactions are read only, none can be handled.",
        "Connect to the primary (target_session_attrs=read-write), or set default_transaction_read_only off.",
    ),
    "search-path": Kind(
        ERROR,
        "A handler's unqualified table names may mean oncebox's tables, and change them.",
        "Use a role of another name, another search_path, or App(schema=…).",
    ),
    "rights-missing": Kind(
        ERROR,
        "The app reads and writes all of its tables; without the right to, it fails at the first message.",
        "Grant SELECT, INSERT, UPDATE and DELETE on these tables to the role.",
    ),
    "index-missing": Kind(
        ERROR,
        "Without it duplicates are not found, or every look at the queue reads all of it.",
        "Create it again: oncebox schema print has its statement.",
    ),
    "index-invalid": Kind(
        ERROR,
        "PostgreSQL keeps it up to date but does not use it, and a unique one may not hold.",
        "REINDEX INDEX CONCURRENTLY, or drop it and create it again.",
    ),
    "trigger-off": Kind(
        ERROR,
        "It refuses handlers that commit by themselves; without it, half an effect can be committed.",
        "ALTER TABLE … ENABLE TRIGGER refuse_early_commit, or create it again: oncebox schema print has it.",
    ),
    "bloat": Kind(
        WARNING,
        "Dead rows are read by every look at the table: taking from the queue gets slower and slower.",
        "VACUUM the table; then find out what kept autovacuum away (old-snapshot, autovacuum-off).",
    ),
    "autovacuum-off": Kind(
        WARNING,
        "The queue is written and deleted all the time; nobody cleans it, and it only grows.",
        "ALTER TABLE … RESET (autovacuum_enabled), or turn autovacuum on in the server's settings.",
    ),
    "old-snapshot": Kind(
        WARNING,
        "Nothing that was deleted since it began can be cleaned away, in any table.",
        "End it, or the job that holds it: SELECT pg_terminate_backend(…); set idle_in_transaction_session_timeout.",
    ),
    "clock-skew": Kind(
        WARNING,
        "Leases and windows go by the database's clock, signatures of webhooks and times in ids by this machine's.",
        "Set both clocks by NTP.",
    ),
    "notify-lost": Kind(
        WARNING,
        "What is published waits for the next poll instead of going out at once.",
        "Connect the relay directly; through a pooler in transaction mode, say ?pooler=transaction.",
    ),
    "pooler-unnamed": Kind(
        ERROR,
        "The URL leads through a pooler in transaction mode, and the app does not know: what it sets on its session "
        "(timeouts, prepared statements) lands on other people's, and theirs on its.",
        "Add ?pooler=transaction to the URL, or connect directly.",
    ),
    "pooler-absent": Kind(
        NOTE,
        "Without a pooler in between, prepared statements and notifications could be used, and are not.",
        "Leave ?pooler=transaction out of the URL.",
    ),
    "pooler-prepared": Kind(
        NOTE,
        "oncebox prepares nothing through a pooler; a handler, or an ORM, that does fails at random.",
        "Turn prepared statements off there (prepare_threshold=None, statement_cache_size=0), or set the pooler's "
        "max_prepared_statements.",
    ),
}  # fmt: skip

STANDING = {
    "backlog-old": Kind(
        WARNING,
        "Messages come faster than they are handled, or nobody handles them.",
        "oncebox status --watch shows whether it shrinks; run more workers, or find out what fails.",
    ),
    "workers-none": Kind(
        ERROR, "Messages wait, and no process is there to take them.", "Start one: oncebox run module:app."
    ),
    "worker-lapsed": Kind(
        WARNING,
        "Its process died or was cut off, and no other has taken note: what it had in hand, if anything, waits. On "
        "SQLite a handler that takes long keeps every heartbeat waiting, too.",
        "Start workers: the first one counts what the dead ones had in hand, and goes on.",
    ),
    "lease-stuck": Kind(
        WARNING,
        "The worker that took them is gone, and no worker that handles their types runs.",
        "Start workers that have these handlers.",
    ),
    "type-unhandled": Kind(
        WARNING,
        "They wait for a deployment that handles them, and are dead after unknown_type_seconds.",
        "Deploy a handler for the type, or have its producer stop; oncebox show ID has one of them.",
    ),
    "keys-blocked": Kind(
        WARNING,
        "Everything behind a dead head waits.",
        "oncebox keys list names the heads: redrive or discard them, or oncebox keys unblock.",
    ),
    "keys-gapped": Kind(
        WARNING,
        "Everything after a missing version waits, until gap_seconds are over.",
        "oncebox keys list names what is missing: have it sent again, or oncebox keys skip.",
    ),
    "effects-unknown": Kind(
        WARNING,
        "Nobody knows whether the call happened; the message waits for a person.",
        "oncebox effects list; ask the provider; oncebox effects settle.",
    ),
    "effects-started": Kind(
        WARNING,
        "A call that has gone on for so long has lost its process, or hangs.",
        "Start workers: policy decides about it; else look at the provider.",
    ),
    "outbox-old": Kind(
        WARNING,
        "What was published has not got out.",
        "Is a relay running (oncebox run), and does the sink's broker answer? Its log says why.",
    ),
    "outbox-parked": Kind(
        WARNING,
        "They were refused too often, or fit no sink, and wait for a person.",
        "oncebox outbox list; then oncebox outbox retry or discard.",
    ),
    "dead": Kind(
        WARNING,
        "They have had no effect, and are not tried again by themselves.",
        "oncebox dead list; mend what failed; oncebox dead redrive or discard.",
    ),
    "claims-unfinished": Kind(
        WARNING,
        "A guarded block raised and its transaction was committed all the same: half an effect may exist, and every "
        "further delivery is refused.",
        "oncebox dead list --why unfinished; look at what the block wrote; oncebox dead redrive or discard. Then find "
        "who catches the error and commits.",
    ),
    "conflicts": Kind(
        WARNING,
        "Two different messages share an id; the second has had no effect.",
        "oncebox show ID --payload; oncebox dead resolve says which stands. Then look at the producer.",
    ),
    "partitions-missing": Kind(
        WARNING,
        "What comes for these days is handled as ever, but lies in the rest, and is deleted row by row.",
        "Is oncebox run going somewhere, and may its role create tables there? Its log says why it can't.",
    ),
    "retention-behind": Kind(
        WARNING,
        "Nobody has walked the ledger to its end for so long: it grows beyond its window.",
        "Is oncebox run going somewhere? Its log tells of failed walks; oncebox purge does it now.",
    ),
}  # fmt: skip
