"""Where the demo keeps its tables: a schema (PostgreSQL) or a prefix (SQLite) of its own, gone afterwards."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.engines.queries import prefix
from oncebox.errors import ConfigError
from oncebox.runtime.schema import migrate

log = logging.getLogger("oncebox")


class Place(msgspec.Struct, frozen=True):
    """A database and a name in it that is nobody else's. Travels to the workers, URL and all."""

    url: str
    schema: str

    @property
    def database(self) -> Database:
        """As oncebox sees it."""
        return Database(self.url, schema=self.schema)

    def charges(self, side: str) -> str:
        """The table of charges of one run."""
        return prefix(self.database.dialect, self.schema) + f"charges_{side}"

    def connect(self) -> Any:
        """A connection as a handler has it, sqlite3's or psycopg's: each statement commits by itself, and
        the settings (WAL, synchronous) are those that oncebox uses, so that the runs compare."""
        return self.database.connect(Settings()).raw

    def charge_sql(self, side: str) -> str:
        """What charging a payment comes down to, in the driver's own parameter style."""
        mark = "?" if self.database.dialect == "sqlite" else "%s"
        table = self.charges(side)
        return f"INSERT INTO {table} (payment, account, cents) VALUES ({mark}, {mark}, {mark})"  # noqa: S608

    def create(self, side: str) -> None:
        """A table of charges. Append-only, and with no unique index that would hide a double charge."""
        connection = self.connect()
        try:
            if self.database.dialect == "postgresql":
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
            connection.execute(
                f"CREATE TABLE {self.charges(side)} "
                "(payment text NOT NULL, account integer NOT NULL, cents integer NOT NULL)"
            )
        finally:
            connection.close()

    def count(self, side: str) -> Counter[str]:
        """How often each payment was charged, read from the table and nothing else."""
        connection = self.connect()
        try:
            rows = connection.execute(f"SELECT payment FROM {self.charges(side)}")  # noqa: S608
            return Counter(payment for (payment,) in rows)
        finally:
            connection.close()

    def drop(self) -> None:
        """Remove everything that was made under the name."""
        connection = self.connect()
        try:
            if self.database.dialect == "postgresql":
                connection.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
                return
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in tables:
                if name.startswith(prefix("sqlite", self.schema)):
                    connection.execute(f'DROP TABLE "{name}"')
        finally:
            connection.close()


@contextmanager
def borrowed(url: str | None, folder: Path) -> Iterator[Place]:
    """A place in this database, or in a SQLite file in `folder`, for the length of the block.

    What was made there is dropped at the end, and a SQLite file that was not there before is removed.
    ConfigError for a URL that the demo can't use, DatabaseUnavailable when nothing answers there.
    """
    database = Database(url or _sqlite_url(folder / "demo.db"))
    if not database.serves_sync:
        raise ConfigError("the demo's handlers are plain def, which asyncpg can't serve: use postgresql://")
    name = f"oncebox_demo_{secrets.token_hex(4)}"
    if database.dialect == "sqlite":
        file = Path(database.place.removeprefix("sqlite:///")).absolute()
        # Absolute: the workers need not be in this folder.
        place = Place(_sqlite_url(file), name)
        leave = place.drop if file.exists() else lambda: _remove(file)
    else:
        assert url is not None
        place = Place(url, name)
        leave = place.drop
    place.connect().close()
    try:
        migrate(place.database)
        yield place
    finally:
        try:
            leave()
        except Exception as error:
            # What was found out matters more than the tables that are left; so this does not raise.
            log.warning("the demo could not remove %s from %s: %s", name, place.database.place, error)


def _sqlite_url(file: Path) -> str:
    return f"sqlite:///{quote(str(file))}"


def _remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
