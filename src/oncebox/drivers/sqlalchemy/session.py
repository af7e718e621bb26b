"""The steps of a flow, on connections of the app's engine."""

from __future__ import annotations

from typing import Any

from oncebox.core.steps import Begin, Call, Commit, Execute
from oncebox.drivers.sqlalchemy.joined import Joined


class SqlAlchemySession(Joined):
    """Performs steps, blocking. A dialect adds what a transaction opens and ends with; `Awaiting`
    makes the steps awaitable."""

    def begin(self, step: Begin) -> Any:
        if self.turn is not None:
            self.turn.take()
        return self._begin(step)

    def _begin(self, step: Begin) -> int:
        self._forget()
        self._ended = False
        try:
            self._connect()
            with self._translating():
                self._root = self._open.begin()
                self._enter(step)
                return self._calls(step.calls)
        except BaseException:
            self._rollback()
            raise

    def execute(self, step: Execute) -> Any:
        with self._translating():
            return self._calls(step.calls)

    def execute_text(self, text: str) -> Any:
        """Plain SQL, for migrations."""
        with self._translating():
            self._script(text)

    def fetch(self, call: Call) -> Any:
        if self.raw is None:
            return self._alone(call)
        with self._translating():
            return self._rows(call)

    side = fetch

    def vouch(self, call: Call) -> Any:
        if self.raw is not None:
            raise RuntimeError("a flush inside a transaction flushes nothing")
        return self._alone(call)

    def _alone(self, call: Call) -> list[tuple[Any, ...]]:
        """One statement in a transaction of its own."""
        self._forget()
        self._ended = False
        try:
            self._connect()
            with self._translating(committing=True):
                self._root = self._open.begin()
                self._enter_alone()
                rows = self._rows(call)
                self._root.commit()
            return rows
        finally:
            self._rollback()

    def save(self, first: bool) -> Any:
        """A savepoint that SQLAlchemy knows: a handler's session joins it, and so its failing flush
        undoes that handler's work and not the whole batch's."""
        with self._translating():
            if not first:
                self._nested.commit()
            self._nested = self._open.begin_nested()

    def restore(self) -> Any:
        self._forget()
        self._check_root()
        with self._translating():
            while (nested := self._open.get_nested_transaction()) is not None:
                nested.rollback()
            # Whether it was rolled back by the handler's session or its release was refused, the
            # savepoint itself is still there.
            self._send(f"ROLLBACK TO SAVEPOINT {self._nested._savepoint}")
            self._send(f"RELEASE SAVEPOINT {self._nested._savepoint}")
            self._nested = self._open.begin_nested()

    def commit(self, step: Commit) -> Any:
        self._finish(step)
        return self.begin(step.then) if step.then is not None else 0

    def _finish(self, step: Commit) -> None:
        self._check_root()
        with self._translating(committing=True):
            self._calls(step.calls)
            self._leave(step)
            self._root.commit()
        self._release()

    def rollback(self) -> Any:
        self._forget()
        self._rollback()

    def close(self) -> Any:
        self._forget()
        self._rollback()

    def cancel(self) -> None:
        """Interrupt the running statement, from another thread."""
