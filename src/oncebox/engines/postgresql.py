"""PostgreSQL: how steps become text, and what its error codes mean.

Several statements travel as one simple-protocol message with literals in it, because round trips
are the cost: BEGIN with the claim, the end check with COMMIT, COMMIT with the next claim.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

from oncebox import errors
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit
from oncebox.engines.queries import columns

SAVE = "RELEASE SAVEPOINT oncebox; SAVEPOINT oncebox"
SAVE_FIRST = "SAVEPOINT oncebox"
RESTORE = "ROLLBACK TO SAVEPOINT oncebox"
CHAIN = "AND CHAIN"
"""COMMIT and BEGIN in one statement. What a handler changed of its transaction's character comes along: a read-only
one refuses the next claim, which is then made again, in a transaction of its own."""
BEGIN_EXPLICIT = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""For sessions whose defaults are not ours to know."""
CALLS_COUNTED = 170000
"""The first server whose pg_stat_statements counts a CALL without its arguments. Before it, every token and id would be
an entry of its own, and push the user's out."""
CLAIMS_MAX = 32
"""Claims of their own that a session prepares for kinds of messages."""
CHECK = (
    "SELECT set_config('oncebox.finished', '{0}', true), "
    "1/(current_setting('oncebox.claim', true) IS NOT DISTINCT FROM '{0}')::int"
)
"""The closing check of who can't know whether the database has the procedure for it: migrations, and sessions that
prepare nothing; and of servers that keep statistics of every CALL."""

OWN_ROLE = "SET LOCAL role TO DEFAULT; "
"""What is written and called at the end needs rights of ours, and a handler may have taken another role for its own
statements (`SET LOCAL ROLE`, for row-level security)."""

_UNAVAILABLE = ("08", "57P", "53300", "25P03", "58", "XX000")


def literal(value: Any) -> str:
    """`value` as an SQL literal. E'' reads backslashes the same whatever the server's settings."""
    kind = type(value)
    if kind is str:
        if "\0" in value:
            raise errors.MessageError("PostgreSQL text can't hold a NUL character")
        escaped: str = value.replace("'", "''")
        return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in escaped else "'" + escaped + "'"
    if kind is bytes:
        return f"E'\\\\x{value.hex()}'"
    if value is None:
        return "NULL"
    if kind is bool:
        return "true" if value else "false"
    if kind is int or (kind is float and math.isfinite(value)):
        return str(value)
    if kind is float:
        return f"'{value}'::float8"
    if kind is list:
        # One constant for the server to read, and one text in its statistics, however many there are.
        return literal("{" + ",".join(map(_element, value)) + "}")
    # As drivers send it: an enum's own idea of its text would be another id.
    return literal(str.__str__(value)) if isinstance(value, str) else _refuse(value)


def _element(value: Any) -> str:
    """`value` as an array's text has it."""
    kind = type(value)
    if kind is int:
        return str(value)
    if value is None:
        return "NULL"
    if kind is bytes:
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, str):
        escaped = str.__str__(value).replace("\\", "\\\\")
        return '"' + escaped.replace('"', '\\"') + '"'
    return str(value) if kind is bool or kind is float else _refuse(value)


_known = lru_cache(maxsize=1024)(literal)
"""For texts that come again and again: names of consumers, sources and types."""
_CLAIM = ("consumer", "source", "message_id", "type", "fingerprint", "state", "token", "lazy")
_Kind = tuple[str, str, str, int, bool]
_numbers = itertools.count(1)


class Claims:
    """The claims that a session of our own has prepared, which every message plans anew otherwise.

    EXECUTE evaluates its literals one by one, and most of them are the same for all messages of a kind. So each kind
    that a transaction is opened with gets a claim of its own, with three parameters; the others share one with eight.
    No name is used twice: what became of a statement that was to be prepared is not always known.
    """

    __slots__ = ("_made", "_names", "_query", "_shared", "latest")

    def __init__(self, queries: Queries) -> None:
        assert queries.claim.names == _CLAIM
        self._query = queries.claim
        self._shared = _name()
        self._names: dict[_Kind, str] = {}
        self.latest: _Kind | None = None
        """What was learnt with a message that has not been answered yet."""
        self._made = 0

    def prepare(self) -> str:
        """What a session sends first."""
        return f"PREPARE {self._shared} AS {self._query.numbered}"

    def learn(self, params: dict[str, Any]) -> str:
        """What to send before the first claim of its kind; empty for a kind that is known, or one too many. It is
        sent ahead of BEGIN: whatever becomes of the transaction, it is prepared."""
        kind = _kind(params)
        if kind in self._names or self._made >= CLAIMS_MAX:
            return ""
        self._made += 1
        self.latest = kind
        name = self._names[kind] = _name()
        numbers = {"message_id": "$1", "fingerprint": "$2", "token": "$3"}
        written = [
            (numbers.get(piece) or literal(params[piece])) if n & 1 else piece
            for n, piece in enumerate(self._query.pieces)
        ]
        return f"PREPARE {name} AS {''.join(written)}; "

    def doubt(self) -> None:
        """A message failed: what was learnt with it may not have been prepared, and is learnt again."""
        if self.latest is not None:
            self._names.pop(self.latest, None)
            self.latest = None

    def text(self, params: dict[str, Any]) -> str:
        """The claim, written out."""
        # As `_kind`, without the call: every message comes by here.
        name = self._names.get(
            (params["consumer"], params["source"], params["type"], params["state"], params["lazy"])
        )
        own = literal(params["message_id"])
        if name is not None:
            return f"EXECUTE {name}({own},E'\\\\x{params['fingerprint'].hex()}','{params['token']}')"
        return (
            f"EXECUTE {self._shared}({_known(params['consumer'])},{_known(params['source'])},"
            f"{own},{_known(params['type'])},E'\\\\x{params['fingerprint'].hex()}',"
            f"{params['state']},'{params['token']}',{'true' if params['lazy'] else 'false'})"
        )


def _name() -> str:
    return f"oncebox_claim_{next(_numbers)}"


def _kind(params: dict[str, Any]) -> _Kind:
    return params["consumer"], params["source"], params["type"], params["state"], params["lazy"]


def _refuse(value: Any) -> str:
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def parameters(call: Call) -> dict[str, Any]:
    """The call's parameters, with `rows` turned into one array per column."""
    params = call.params
    rows = params.get("rows")
    return params if rows is None else {**params, **columns(rows)}


def text(call: Call) -> str:
    """The call as SQL with literals."""
    query = call.query
    if not query.order:
        return query.text
    params = parameters(call)
    return query.positional % tuple([literal(params[name]) for name in query.order])


def script(calls: tuple[Call, ...]) -> str:
    """Several calls as one message."""
    return "; ".join(map(text, calls))


def has_check(queries: Queries) -> str:
    """Asks whether the database has the procedure that closes a transaction, lets this role call it, and does not keep
    statistics of every call."""
    assert queries.finished is not None
    name = queries.finished.text.split()[1].partition("(")[0]
    return (
        f"SELECT coalesce(has_function_privilege(to_regprocedure('{name}(text)'), 'EXECUTE'), false) "
        f"AND current_setting('server_version_num')::int >= {CALLS_COUNTED}"
    )


def check(queries: Queries) -> str:
    """The closing check, where the database has it."""
    assert queries.finished is not None
    return queries.finished.text.replace(":token", "'{0}'")


def guard_open(queries: Queries, params: dict[str, Any], name: str, mark: str, version: int) -> str:
    """The guard's claim with the BEGIN before it, in one message, for a server of this version."""
    query = queries.guard_call if version >= CALLS_COUNTED else queries.guard_open
    assert query is not None
    return "BEGIN; " + query.positional % (
        _known(params["consumer"]),
        _known(params["source"]),
        literal(params["message_id"]),
        _known(params["type"]),
        f"E'\\\\x{params['fingerprint'].hex()}'",
        literal(name),
        f"'{mark}'",
    )


def begin(step: Begin, claims: Claims | None = None, how: str = BEGIN_EXPLICIT) -> str:
    """The opening message: the token is set locally, so that any commit or rollback erases it."""
    text = how
    if not step.carried:
        # No SET LOCAL, which pg_stat_statements would keep with its token; and no row, which would be counted.
        text += f"; SELECT 1 WHERE set_config('oncebox.claim', '{step.token}', true) IS NULL"
    if step.lazy:
        text += "; SET LOCAL synchronous_commit = off"
    if step.lock_ms:
        text += f"; SET LOCAL lock_timeout = {step.lock_ms}"
    if step.carried and claims is not None:
        return f"{text}; {claims.text(step.calls[0].params)}"
    return f"{text}; {script(step.calls)}" if step.calls else text


def learn(step: Begin, claims: Claims | None) -> str:
    """What to send ahead of an opening message, so that its claim and all others of its kind cost less."""
    return claims.learn(step.calls[0].params) if claims is not None and step.carried else ""


def commit(step: Commit, claims: Claims | None = None, check: str = CHECK, first: str = OWN_ROLE) -> str:
    """The closing message. An aborted transaction fails at the check, an ended one divides by zero;
    both before COMMIT, whose tag alone proves nothing."""
    text = f"{check.replace('{0}', step.token)}; COMMIT"
    if step.calls:
        text = f"{script(step.calls)}; {text}"
    text = f"{first}{text}"
    return text if step.then is None else f"{text} {begin(step.then, claims, CHAIN)}"


def outdated(error: BaseException) -> errors.Conflict | None:
    """What a driver has prepared for the handler returns other columns since its table was changed. Nobody's failure,
    and it works when the message runs again: asyncpg and SQLAlchemy forget it, a psycopg connection is given up."""
    if getattr(error, "sqlstate", None) != "0A000":
        return None
    # The code says only that something is not supported. psycopg tells where in the server; asyncpg has looked there.
    where = getattr(getattr(error, "diag", None), "source_function", None)
    if where != "RevalidateCachedQuery" and type(error).__name__ != "InvalidCachedStatementError":
        return None
    return errors.Conflict("a table has changed under a prepared statement; it is prepared again (0A000)")


def translate(sqlstate: str | None, *, committing: bool = False) -> errors.OnceboxError:
    """What an error code means to a flow. The driver's own error becomes the cause."""
    if sqlstate is None or sqlstate.startswith(_UNAVAILABLE):
        if committing:
            return errors.CommitUnknown("the connection was lost during COMMIT; it may have happened")
        return errors.DatabaseUnavailable("the database connection was lost")
    match sqlstate:
        case "26000":
            return errors.Conflict(
                "a prepared statement was deallocated by somebody else; it is prepared again"
            )
        case "40001" | "40P01":
            return errors.Conflict(f"the database asks to run this transaction again ({sqlstate})")
        case "55P03":
            return errors.LockBusy("a lock was not granted in time (55P03)")
        case "25P02":
            return errors.TransactionAborted(
                "a database error was swallowed inside the handler, so PostgreSQL will not commit; "
                "let the error out, or wrap the statement in a savepoint"
            )
        case "OB001":
            return errors.TransactionEnded(
                "the handler tried to commit by itself; the runtime commits after it returns"
            )
        case "22012" if committing:
            return errors.TransactionEnded(
                "the handler ended the transaction by itself (COMMIT or ROLLBACK); the runtime does that"
            )
        case "42P01" | "3F000" | "42703":
            return errors.SchemaMissing(
                "the oncebox tables are missing from this database or older than this oncebox; run: oncebox migrate"
            )
        case _:
            return errors.DatabaseError(f"the database refused ({sqlstate})")
