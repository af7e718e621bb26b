"""A process's connections: opened when first needed, and closed without a word when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from oncebox.app import App
from oncebox.consumer import Consumer
from oncebox.core.run import run, run_async
from oncebox.core.steps import Call, Op
from oncebox.core.work import Item, Work
from oncebox.drivers.session import Session, Settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.running import connection_settings
from oncebox.runtime.sessions import AsyncSideChannel, SideChannel, finished
from oncebox.testing.loops import Loop
from oncebox.testing.steps import Steps

T = TypeVar("T")


class Place(Protocol):
    """Where hands are at work."""

    app: App
    loop: Loop


class Hands:
    """Performs flows of consumers of either colour: `async def` ones on the loop, others right here."""

    def __init__(self, place: Place) -> None:
        self._app = place.app
        self._loop = place.loop
        self._database = place.app.database
        self._sessions: dict[tuple[bool, Settings], Session] = {}
        self._side: SideChannel | None = None
        self._async_side: AsyncSideChannel | None = None

    def run(
        self, consumer: Consumer, work: Work, flow: Op[T], settle: Callable[[Item], None], steps: Steps
    ) -> T:
        """The flow's result; raises what ends it."""
        settings = connection_settings(work.policy)
        if self._is_async(consumer):
            return self._loop.run(self._awaiting(work, flow, settle, steps, settings))
        session = self._sessions.get((False, settings))
        if session is None or session.broken:
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

    async def _awaiting(
        self, work: Work, flow: Op[T], settle: Callable[[Item], None], steps: Steps, settings: Settings
    ) -> T:
        session = self._sessions.get((True, settings))
        if session is None or session.broken:
            session = self._sessions[True, settings] = await self._database.connect_async(settings)
        performer = Performer(
            work, session, self._awaiting_side(), is_async=True, settle=settle, load=self._app.load
        )
        return await run_async(flow, steps.around(performer, is_async=True))

    def side(self, consumer: Consumer, call: Call) -> None:
        """A small statement on the second connection."""
        if self._is_async(consumer):
            self._loop.run(self._awaiting_side()(call))
        else:
            self._blocking_side()(call)

    def close(self) -> None:
        """As the end of a process does: what is open is not committed."""
        sessions, self._sessions = self._sessions, {}
        for (is_async, _), session in sessions.items():
            if is_async:
                self._loop.run(finished_later(session))
            else:
                session.close()
        if self._side is not None:
            self._side.close()
        if self._async_side is not None:
            self._loop.run(self._async_side.close())

    def _is_async(self, consumer: Consumer) -> bool:
        return consumer.registry.is_async or not self._database.serves_sync

    def _blocking_side(self) -> SideChannel:
        if self._side is None:
            self._side = SideChannel(self._database, Settings(side=True))
        return self._side

    def _awaiting_side(self) -> AsyncSideChannel:
        if self._async_side is None:
            self._async_side = AsyncSideChannel(self._database, Settings(side=True))
        return self._async_side


async def finished_later(session: Session) -> Any:
    """Close an async session on its loop."""
    return await finished(session.close())
