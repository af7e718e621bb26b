"""A SQLite file as a whole: copied into memory, and back in place, so that open connections stay good."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter

from oncebox.testing.tables.state import HOST, KEPT, Row, State, Table, as_text, check_is_for_tests, kept

PREFIX = "oncebox_"
WAIT_SECONDS = 10.0


class SqliteTables:
    """The file's tables. There are no sequences: AUTOINCREMENT is rolled back with everything else."""

    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(
            path, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
        )
        self._saved = sqlite3.connect(":memory:", check_same_thread=False)

    def save(self) -> None:
        size = self._file.execute(
            "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        ).fetchone()[0]
        alive = self._file.execute(
            "SELECT count(*) FROM oncebox_worker WHERE heartbeat > ? AND host <> ?",
            (int((time.time() - 5) * 1_000_000), HOST),
        ).fetchone()[0]
        check_is_for_tests(size, alive)
        self._file.backup(self._saved)

    def touch(self) -> None:
        """Nothing is kept between two readings."""

    def restore(self, *, shifted: bool = False) -> None:
        self._saved.backup(self._file)

    def read(self) -> State:
        state: State = {}
        names = self._file.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            " ORDER BY name"
        ).fetchall()
        for (name,) in names:
            own = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
            if own and own not in KEPT:
                continue
            table = self._table(name)
            state[f"oncebox.{own}" if own else name] = kept(own, table) if own else table
        return state

    def _table(self, name: str) -> Table:
        quoted = '"' + name.replace('"', '""') + '"'
        cursor = self._file.execute(f"SELECT * FROM {quoted}")  # noqa: S608 - a name from the catalogue, quoted
        columns = tuple(column[0] for column in cursor.description)
        rows: Counter[Row] = Counter(tuple(map(as_text, row)) for row in cursor.fetchall())
        described = self._file.execute(f"PRAGMA table_info({quoted})").fetchall()
        keyed = sorted((place, column) for _, column, *_, place in described if place)
        return Table(columns, tuple(column for _, column in keyed), rows)

    def make_due(self) -> bool:
        return self._file.execute("UPDATE oncebox_queue SET due = received WHERE due > received").rowcount > 0

    def close(self) -> None:
        self._file.close()
        self._saved.close()
