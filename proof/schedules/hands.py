"""Hands that perform one step at a time, and can tell a step that waits for a lock from one that is slow.

On SQLite nothing ever waits: a step that finds the write lock taken has changed nothing, and is tried
again when somebody else has moved. On PostgreSQL a step that waits goes on waiting in a thread of its
own, and the server says whether it waits for a lock: in the name of its process, which costs next to
nothing to read, or when asked. So what is found does not depend on time.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from psycopg.pq import TransactionStatus

from oncebox import errors
from oncebox.core import steps
from oncebox.core.steps import Call, Step
from oncebox.drivers.database import Database
from oncebox.drivers.session import Session, Settings
from oncebox.runtime.performer import Performer

PROBE_SECONDS = 0.0005
"""How long a step may take before it is looked at whether it waits."""
STUCK_SECONDS = 20.0


class Reply(msgspec.Struct, frozen=True):
    """What came of a step."""

    value: Any = None
    error: BaseException | None = None


class Hands:
    """One worker's two connections. `perform` is set anew for every schedule."""

    perform: Performer

    def __init__(self, database: Database) -> None:
        self.database = database
        self.session: Session = database.connect(Settings(lock_timeout_seconds=STUCK_SECONDS))
        self.side_session: Session = database.connect(Settings(side=True, lock_timeout_seconds=STUCK_SECONDS))

    def side(self, call: Call) -> Any:
        """The second connection's part."""
        return self.side_session.side(call)

    def start(self, step: Step) -> Reply | None:
        """Perform the step; None when it waits for a lock."""
        raise NotImplementedError

    def poll(self) -> Reply | None:
        """The reply of a step that waited, if it has come."""
        raise NotImplementedError

    def gave_up_locks(self, step: Step) -> bool:
        """Whether this step, which is done, may have let go of what others wait for."""
        return True

    def vanish(self) -> None:
        """What is left of a process that was killed: the server rolls its transaction back."""
        self.session.rollback()

    def close(self) -> None:
        self.session.close()
        self.side_session.close()

    def _performed(self, step: Step) -> Reply:
        try:
            return Reply(self.perform(step))
        except BaseException as error:
            return Reply(error=error)


class LiteHands(Hands):
    """On SQLite, in the scheduler's own thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        for session in (self.session, self.side_session):
            # As if each were a process of its own: the file's lock is at stake, not the process's.
            session._writer = threading.Lock()  # type: ignore[attr-defined]
            session.raw.execute("PRAGMA busy_timeout=0")
            session.raw.execute("PRAGMA synchronous=OFF")
            session._lazy = None  # type: ignore[attr-defined]
            session._durability = lambda lazy: None  # type: ignore[attr-defined]
        self._then: steps.Begin | None = None

    def start(self, step: Step) -> Reply | None:
        if self._then is not None:
            return self._begun(self._then)
        if isinstance(step, steps.Commit) and step.then is not None:
            # On SQLite the next BEGIN is a statement of its own, and may have to wait.
            reply = self._performed(msgspec.structs.replace(step, then=None))
            return reply if reply.error is not None else self._begun(step.then)
        return self._unless_busy(self._performed(step))

    def _begun(self, then: steps.Begin) -> Reply | None:
        self._then = then
        reply = self._unless_busy(self._performed(then))
        if reply is not None:
            self._then = None
        return reply

    def _unless_busy(self, reply: Reply) -> Reply | None:
        error = reply.error
        if (
            isinstance(error, sqlite3.OperationalError)
            and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
        ):
            return None
        return None if isinstance(error, errors.LockBusy) else reply

    def poll(self) -> Reply | None:
        return None

    def vanish(self) -> None:
        self._then = None
        super().vanish()


class PostgresHands(Hands):
    """On PostgreSQL, in a thread of their own."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.pids = [session.raw.info.backend_pid for session in (self.session, self.side_session)]
        self._titles = [title for pid in self.pids if (title := Path(f"/proc/{pid}/cmdline")).exists()]
        self._asked: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hands", daemon=True)
        self._thread.start()
        self._under_way = False
        self.is_waiting: Callable[[list[int]], bool] = lambda pids: False
        """Asks the server; set by the world."""
        self.others: list[PostgresHands] = []

    @property
    def holds_locks(self) -> bool:
        """Whether others may have to wait for it."""
        return self._under_way or self.session.raw.info.transaction_status != TransactionStatus.IDLE

    def _work(self) -> None:
        while (step := self._asked.get()) is not None:
            self._answered.put(self._performed(step))

    def start(self, step: Step) -> Reply | None:
        # Where nobody else has a lock, nobody waits, and no thread is needed.
        if not isinstance(step, STATEMENTS) or not any(other.holds_locks for other in self.others):
            return self._performed(step)
        self._under_way = True
        self._asked.put(step)
        return self._heard(self._has_begun_to_wait)

    def _has_begun_to_wait(self) -> bool:
        """By the name of its process, which says so before it waits, and is late only in saying that it is over."""
        if len(self._titles) < len(self.pids):
            return self.is_waiting(self.pids)
        return any(b" waiting" in title.read_bytes() for title in self._titles)

    def _waits_still(self) -> bool:
        return self.is_waiting(self.pids)

    def _heard(self, waits: Callable[[], bool]) -> Reply | None:
        until = time.monotonic() + STUCK_SECONDS
        while time.monotonic() < until:
            try:
                reply = self._answered.get(timeout=PROBE_SECONDS)
            except queue.Empty:
                if waits():
                    return None
            else:
                self._under_way = False
                return reply
        raise AssertionError("a step neither ends nor waits for a lock")

    def poll(self) -> Reply | None:
        # A lock is handed on before the reply of the commit that gave it up: ask first, then listen.
        if self._answered.empty() and self._waits_still():
            return None
        return self._heard(self._waits_still)

    def gave_up_locks(self, step: Step) -> bool:
        status = self.session.raw.info.transaction_status
        return isinstance(step, RELEASING) or status == TransactionStatus.IDLE

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(STUCK_SECONDS)
        super().close()


STATEMENTS = (
    steps.Begin, steps.Execute, steps.Fetch, steps.Save, steps.Restore, steps.Commit, steps.Rollback, steps.Side,
    steps.Flush, steps.Handle, steps.Script,
)  # fmt: skip
"""Steps that may wait for a lock."""
RELEASING = (steps.Commit, steps.Rollback, steps.Restore, steps.Side)
"""Steps that end a transaction, or a part of one."""
