"""Walks that are killed: a process of its own that ends by SIGKILL at a step of its choosing, again and again.

`python -m tests.operate.dying DATABASE ARCHIVE [STRIDE]` puts old rows into a ledger, has a child walk and die at step
n, looks whether every row is still somewhere, and goes on until a child comes through. It prints what it found as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

# Imported once, here, and not by every child.
import obstore.store  # noqa: F401
import psycopg
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401

import oncebox.drivers.psycopg
import oncebox.drivers.sqlite  # noqa: F401
from oncebox import App
from oncebox.archive import open_place, rows
from oncebox.archive.places import Place
from oncebox.core.run import Perform
from oncebox.core.steps import Step
from oncebox.drivers.session import Session
from oncebox.runtime.schema import migrate
from oncebox.runtime.sweeper import Sweeper
from tests.operate.alone import wait_until_alone

ROWS = 2
ROUNDS_MAX = 80


class Dying(Sweeper):
    """Dies before its `number`th step or moment: every step counts, and so does each call of the archive."""

    number = 0
    seen = 0

    def come(self) -> None:
        self.seen += 1
        if self.seen == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def performer(self, session: Session) -> Perform:
        perform = super().performer(session)

        def counted(step: Step) -> Any:
            self.come()
            return perform(step)

        return counted

    def _place(self, consumer: str) -> Place:
        return Counted(open_place(self.archives[consumer]), self.come)


class Counted:
    """An archive whose every call is a moment to die at: before it, and after it."""

    def __init__(self, place: Place, come: Callable[[], None]) -> None:
        self._place = place
        self._come = come

    def put(self, name: str, data: bytes) -> None:
        self._come()
        self._place.put(name, data)
        self._come()

    def get(self, name: str) -> bytes:
        found = self._place.get(name)
        self._come()
        return found

    def names(self, prefix: str) -> Any:
        return self._place.names(prefix)


def connect(database: str) -> Any:
    if database.startswith("sqlite"):
        return sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
    return psycopg.connect(database, autocommit=True)


def fill(database: str, number: int) -> None:
    """Rows of forty days ago, with result and payload, and one of now."""
    lite = database.startswith("sqlite")
    p = "oncebox_" if lite else "oncebox."
    now = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)" if lite else "now()"
    then = f"{now} - 3456000000000" if lite else "now() - interval '40 days'"
    raw = "x'00'" if lite else "'\\x00'"
    with connect(database) as connection:
        for n in range(ROWS):
            key = f"'billing', 's', 'r{number}-{n}'"
            for table, columns, values in (
                ("ledger", "type, fingerprint, received, finished", f"'t', {raw}, {then}, {then}"),
                ("result", "body", raw),
                ("kept", "payload, headers, content_type, provenance", f"{raw}, {raw}, '', ''"),
            ):
                connection.execute(
                    f"INSERT INTO {p}{table} (consumer, source, message_id, {columns}) VALUES ({key}, {values})"
                )
        connection.execute(
            f"INSERT INTO {p}ledger (consumer, source, message_id, type, fingerprint, received, finished) "
            f"VALUES ('billing', 's', 'new{number}', 't', {raw}, {now}, {now})"
        )
    connection.close()


def known(database: str, table: str) -> set[str]:
    p = "oncebox_" if database.startswith("sqlite") else "oncebox."
    with connect(database) as connection:
        found = {row[0] for row in connection.execute(f"SELECT message_id FROM {p}{table}").fetchall()}
    connection.close()
    return found


def walk(database: str, archive: str, number: int) -> int:
    """In a child: the signal that ended it, else minus how many moments there were."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            app = App(database)
            app.consumer("billing", retention=10 * 86_400.0, archive=archive)
            sweeper = Dying(app.database, app.consumers.values(), "me")
            sweeper.number, sweeper.pause = number, 0.0
            done = asyncio.run(sweeper.cycle(rest_seconds=0.0))
            os.write(writer, json.dumps([done, sweeper.seen]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    told = os.read(reader, 100)
    os.close(reader)
    if os.WIFSIGNALED(status):
        if not database.startswith("sqlite"):
            with connect(database) as connection:
                # What its session still has locked, the next walk would pass by.
                wait_until_alone(connection)
        return os.WTERMSIG(status)
    done, seen = json.loads(told)
    assert done, "the walk did not come to its end"
    return -int(seen)


def check(database: str, archive: str, number: int) -> str:
    """In a child, because a library's threads do not survive a fork: what is lost; empty when nothing is."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "the look failed"
        try:
            archived = [each.id for each in rows(archive, consumer="billing")]
            ledger = known(database, "ledger")
            wanted = {f"r{m}-{n}" for m in range(1, number + 1) for n in range(ROWS)}
            new = {f"new{m}" for m in range(1, number + 1)}
            beside = known(database, "kept") | known(database, "result")
            said = (
                f"lost {sorted(wanted - ledger - set(archived))}" if wanted - ledger - set(archived)
                else f"not to be deleted: {sorted(new - ledger)}" if new - ledger
                else f"left behind: {sorted(beside - ledger)}" if beside - ledger
                else f"half deleted: {sorted((ledger - new) - beside)}" if (ledger - new) - beside
                else "read twice" if len(archived) != len(set(archived)) else ""
            )  # fmt: skip
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    return said


def main(database: str, archive: str, stride: str = "1") -> None:
    migrate(App(database).database)
    kills = 0
    for number in range(1, ROUNDS_MAX):
        fill(database, number)
        ended = walk(database, archive, number * int(stride))
        if ended == signal.SIGKILL:
            kills += 1
        if lost := check(database, archive, number):
            print(json.dumps({"kills": kills, "lost": lost, "round": number}))
            return
        if ended <= 0:
            left = known(database, "ledger")
            print(
                json.dumps(
                    {"kills": kills, "lost": "", "moments": -ended, "left": len(left), "rounds": number}
                )
            )
            return
        # Whoever comes next finds everything as it was, and goes through with it.
        assert walk(database, archive, 0) <= 0
        if len(known(database, "ledger")) != number:
            print(json.dumps({"kills": kills, "lost": "not all was purged", "round": number}))
            return
    raise AssertionError("no walk came through")


if __name__ == "__main__":
    main(*sys.argv[1:])
