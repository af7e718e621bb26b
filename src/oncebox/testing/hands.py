"""A process's connections: opened when first needed, and closed without a word when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from oncebox.app import App
from oncebox.consumer import Consumer
from oncebox.core.run import run, run_async
from oncebox.core.steps import Call, Op
from oncebox.core.work import Item, Work
from oncebox.drivers.session import Session, Settings
from oncebox.runtime.members import connection_settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.sessions import AsyncSideChannel, SideChannel, finished
from oncebox.testing.loops import Loop
from oncebox.testing.steps import Steps

T = TypeVar("T")


Kind = tuple[bool, Settings]
Settle = Callable[[Sequence[Item]], None]


class Connections:
    """What all processes of a bench share: connections that the last one has left in order, and the
    second connection, on which nothing is ever open."""

    def __init__(self, app: App, loop: Loop) -> None:
        self.app = app
        self.loop = loop
        self.database = app.database
        self.free: dict[Kind, list[Session]] = {}
        self.side: SideChannel | None = None
        self.async_side: AsyncSideChannel | None = None

    def close(self) -> None:
        """Close what is open."""
        for (is_async, _), sessions in self.free.items():
            for session in sessions:
                _end(session, self.loop, is_async)
        if self.side is not None:
            self.side.close()
        if self.async_side is not None:
            self.loop.run(self.async_side.close())


class Hands:
    """Performs flows of consumers of either colour: `async def` ones on the loop, others right here."""

    def __init__(self, connections: Connections) -> None:
        self._shared = connections
        self._app = connections.app
        self._loop = connections.loop
        self._database = connections.database
        self._sessions: dict[Kind, Session] = {}

    def run(self, consumer: Consumer, work: Work, flow: Op[T], settle: Settle, steps: Steps) -> T:
        """The flow's result; raises what ends it."""
        settings = connection_settings(work.policy)
        if self._is_async(consumer):
            return self._loop.run(self._awaiting(work, flow, settle, steps, settings))
        session = self._known((False, settings))
        if session is None:
            session = self._sessions[False, settings] = self._database.connect(settings)
        performer = Performer(
            work,
            session,
            self._blocking_side(),
            is_async=False,
            settle=settle,
            load=self._app.load,
            watchdog=self._app.watchdog,
        )
        return run(flow, steps.around(performer, is_async=False))

    async def _awaiting(self, work: Work, flow: Op[T], settle: Settle, steps: Steps, settings: Settings) -> T:
        session = self._known((True, settings))
        if session is None:
            session = self._sessions[True, settings] = await self._database.connect_async(settings)
        performer = Performer(
            work, session, self._awaiting_side(), is_async=True, settle=settle, load=self._app.load
        )
        return await run_async(flow, steps.around(performer, is_async=True))

    def _known(self, kind: Kind) -> Session | None:
        """A connection that is open: this process's, or one that another has left in order."""
        session = self._sessions.pop(kind, None)
        if session is None and self._shared.free.get(kind):
            session = self._shared.free[kind].pop()
        if session is not None and session.broken:
            _end(session, self._loop, kind[0])
            return None
        if session is not None:
            self._sessions[kind] = session
        return session

    def side(self, consumer: Consumer, call: Call) -> None:
        """A small statement on the second connection."""
        if self._is_async(consumer):
            self._loop.run(self._awaiting_side()(call))
        else:
            self._blocking_side()(call)

    def leave(self) -> None:
        """The process ends in order: everything it began is committed or rolled back."""
        sessions, self._sessions = self._sessions, {}
        for kind, session in sessions.items():
            self._shared.free.setdefault(kind, []).append(session)

    def die(self) -> None:
        """The process is gone: what is open is not committed."""
        sessions, self._sessions = self._sessions, {}
        for (is_async, _), session in sessions.items():
            _end(session, self._loop, is_async)

    def _is_async(self, consumer: Consumer) -> bool:
        return consumer.registry.is_async or not self._database.serves_sync

    def _blocking_side(self) -> SideChannel:
        if self._shared.side is None:
            self._shared.side = SideChannel(self._database, Settings(side=True))
        return self._shared.side

    def _awaiting_side(self) -> AsyncSideChannel:
        if self._shared.async_side is None:
            self._shared.async_side = AsyncSideChannel(self._database, Settings(side=True))
        return self._shared.async_side


def _end(session: Session, loop: Loop, is_async: bool) -> None:
    if is_async:
        loop.run(_closed(session))
    else:
        session.close()


async def _closed(session: Session) -> None:
    await finished(session.close())
