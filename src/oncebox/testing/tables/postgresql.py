"""A PostgreSQL database as a whole: every table as COPY writes it, and back in place.

In place, because handlers may have connections and names of the database of their own. What did not
change is left alone. A role that may not switch foreign keys off empties everything and fills it in
their order.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.errors import ConfigError
from oncebox.testing.tables.state import (
    HOST,
    KEPT,
    SHIFT,
    Row,
    State,
    Table,
    as_text,
    check_is_for_tests,
    kept,
)

_TABLES = """
SELECT n.nspname, c.relname,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
             AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum),
       ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
             AND a.attnum = ANY(i.indkey) WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY a.attnum),
       ARRAY(SELECT k.confrelid::regclass::oid::bigint FROM pg_constraint k
             WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> c.oid),
       c.oid::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1, 2
"""
_SEQUENCES = """
SELECT schemaname, sequencename, max_value, increment_by FROM pg_sequences ORDER BY 1, 2
"""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _Place(msgspec.Struct, frozen=True):
    """A table, and how to write its name."""

    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    refers: tuple[int, ...]
    oid: int

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def copied(self) -> sql.Composable:
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        return sql.SQL("{} ({})").format(self.identifier, columns) if self.columns else self.identifier


class _Copy(msgspec.Struct, frozen=True):
    """A table's rows as COPY writes them."""

    digest: str
    text: bytes


class PostgresTables:
    """The database's tables and sequences."""

    def __init__(self, database: Database) -> None:
        self._own = database.schema
        self._conn = connection(database)
        self._conn.execute("SET lock_timeout = '10s'")
        self._saved: dict[_Place, _Copy] = {}
        self._sequences: list[tuple[sql.Identifier, int, bool, int]] = []
        self._asked: tuple[tuple[_Place, ...], bytes] = ((), b"")
        """Tables, and the statement that asks for their digests."""
        self._last: dict[_Place, _Copy] | None = None
        """What was read, for as long as nobody has touched it."""

    def _places(self) -> list[_Place]:
        rows = self._conn.execute(_TABLES).fetchall()
        return [
            _Place(schema, name, tuple(columns), tuple(key), tuple(refers), oid)
            for schema, name, columns, key, refers, oid in rows
        ]

    def _copies(self) -> dict[_Place, _Copy]:
        """Every table; what has the digest it had when it was saved is not read again."""
        copies: dict[_Place, _Copy] = {}
        with self._conn.transaction():
            # One moment for all of them, whoever else is still at work.
            self._conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            places = self._places()
            for place, digest in zip(places, self._digests(places), strict=True):
                known = self._saved.get(place)
                if known is not None and known.digest == digest:
                    copies[place] = known
                    continue
                statement = sql.SQL("COPY {} TO STDOUT").format(place.copied)
                with self._conn.cursor().copy(statement) as copy:
                    copies[place] = _Copy(digest, b"".join(bytes(block) for block in copy))
        return copies

    def _digests(self, places: list[_Place]) -> list[str]:
        """All in one round trip."""
        if not places:
            return []
        known = tuple(places)
        if known != self._asked[0]:
            one = sql.SQL(
                "(SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t.ctid), '')) FROM ONLY {} t)"
            )
            digests = sql.SQL(", ").join(one.format(place.identifier) for place in places)
            self._asked = known, sql.SQL("SELECT ARRAY[{}]").format(digests).as_bytes(self._conn)
        row = self._conn.execute(self._asked[1]).fetchone()
        assert row is not None
        found: list[str] = row[0]
        return found

    def save(self) -> None:
        self._check_is_for_tests()
        self._saved = self._copies()
        self._sequences = []
        for schema, name, most, step in self._conn.execute(_SEQUENCES).fetchall():
            sequence = sql.Identifier(schema, name)
            found = self._conn.execute(sql.SQL("SELECT last_value, is_called FROM {}").format(sequence))
            row = found.fetchone()
            assert row is not None
            jump = SHIFT * step
            self._sequences.append((sequence, row[0], row[1], jump if 0 < row[0] + jump <= most else 0))

    def _check_is_for_tests(self) -> None:
        """Rows are put back again and again, which must not happen to anybody's real ones."""
        size = self._conn.execute("SELECT pg_database_size(current_database())").fetchone()
        fresh = (
            "SELECT count(*) FROM {} WHERE heartbeat > statement_timestamp() - interval '5 s' AND host <> %s"
        )
        alive = self._conn.execute(
            sql.SQL(fresh).format(sql.Identifier(self._own, "worker")), (HOST,)
        ).fetchone()
        assert size is not None
        assert alive is not None
        check_is_for_tests(size[0], alive[0])

    def read(self) -> State:
        state: State = {}
        self._last = self._copies()
        for place, copied in self._last.items():
            own = place.schema == self._own
            if own and place.name not in KEPT:
                continue
            table = Table(place.columns, place.key, _parse(copied.text))
            name = place.name if place.schema == "public" else f"{place.schema}.{place.name}"
            state[f"oncebox.{place.name}" if own else name] = kept(place.name, table) if own else table
        return state

    def touch(self) -> None:
        self._last = None

    def restore(self, *, shifted: bool = False) -> None:
        now = self._last or self._copies()
        self._last = None
        changed = [place for place, copied in self._saved.items() if now.get(place) is not copied]
        made = [place for place in now if place not in self._saved]
        if changed or made:
            self._put_back(changed, made)
        if self._sequences:
            sets = [
                sql.SQL("setval({}, {}, {})").format(
                    sql.Literal(sequence.as_string(self._conn)),
                    sql.Literal(last + jump if shifted else last),
                    sql.Literal(called),
                )
                for sequence, last, called, jump in self._sequences
            ]
            self._conn.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(sets)))

    def _put_back(self, changed: list[_Place], made: list[_Place]) -> None:
        for place in made:
            self._conn.execute(sql.SQL("DROP TABLE {} CASCADE").format(place.identifier))
        try:
            with self._conn.transaction():
                # As a replica: no triggers, no foreign keys; rows come back exactly as they were.
                self._conn.execute("SET LOCAL session_replication_role = replica")
                for place in changed:
                    self._conn.execute(sql.SQL("DELETE FROM ONLY {}").format(place.identifier))
                for place in changed:
                    self._fill(place)
        except psycopg.errors.InsufficientPrivilege:
            self._put_all_back()

    def _put_all_back(self) -> None:
        with self._conn.transaction():
            places = _parents_first(list(self._saved))
            for place in places:
                self._conn.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(place.identifier))
            names = sql.SQL(", ").join(place.identifier for place in places)
            self._conn.execute(sql.SQL("TRUNCATE {}").format(names))
            for place in places:
                self._fill(place)
            self._conn.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for place in places:
                self._conn.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(place.identifier))

    def _fill(self, place: _Place) -> None:
        with self._conn.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(place.copied)) as copy:
            copy.write(self._saved[place].text)

    def make_due(self) -> bool:
        queue = sql.Identifier(self._own, "queue")
        made = self._conn.execute(
            # Not by the clock: what has come due since the last turn looked would be left where it is.
            sql.SQL("UPDATE {} SET due = received WHERE due > received").format(queue)
        )
        return made.rowcount > 0

    def close(self) -> None:
        self._conn.close()


def connection(database: Database) -> psycopg.Connection[Any]:
    """A connection of the kit's own, by the app's recipe where that is psycopg's."""
    if database.driver == "psycopg" and database.serves_sync:
        raw: psycopg.Connection[Any] = database.connect(Settings()).raw
        return raw
    try:
        return psycopg.connect(_url(database), autocommit=True)
    except psycopg.Error as error:
        raise ConfigError(
            f"the kit can't open a connection of its own to {database.place}: {error}"
        ) from None


def _url(database: Database) -> str:
    given = getattr(database, "given", None)
    if given is None:
        return database._target
    url = given.engine.url.set(drivername="postgresql")
    return str(url.render_as_string(hide_password=False))


def _parse(copied: bytes) -> Counter[Row]:
    text = copied.decode(errors="replace")
    return Counter(tuple(map(_value, line.split("\t"))) for line in text.split("\n")[:-1])


def _value(field: str) -> str | None:
    if field == "\\N":
        return None
    if "\\" not in field:
        return field
    plain = _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), field)
    if plain.startswith("\\x"):
        try:
            return as_text(bytes.fromhex(plain[2:]))
        except ValueError:
            return plain
    return plain


def _parents_first(places: list[_Place]) -> list[_Place]:
    """Tables after those they refer to; a circle is left in the order it came."""
    ordered: list[_Place] = []
    waiting = list(places)
    while waiting:
        known = {place.oid for place in ordered}
        open_ = {place.oid for place in waiting}
        ready = [place for place in waiting if not (set(place.refers) & open_) - known] or waiting[:1]
        ordered += ready
        waiting = [place for place in waiting if place not in ready]
    return ordered
