"""One pipe per sink: a sink that is slow, hangs or is gone holds up nobody's messages but its own."""

from __future__ import annotations

import asyncio
import fnmatch
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from oncebox.brokers.contract import Sink
from oncebox.core.relay import Outgoing
from oncebox.errors import BrokerError, BrokerUnavailable, ConfigError
from oncebox.runtime.lasting import is_asked
from oncebox.runtime.workers import pause_seconds

PUBLISH_TIMEOUT_SECONDS = 30.0
"""How long a sink may take to confirm a batch. The relay keeps its lease meanwhile."""
TYPES_MAX = 10_000
"""Types whose route is remembered; beyond that they are looked up anew."""

Routes = tuple[tuple[str, Sink], ...]


def routes(sink: Sink | Mapping[str, Sink] | None) -> Routes:
    """(type pattern, sink) in the order they are tried."""
    if sink is None:
        return ()
    if isinstance(sink, Mapping):
        if not all(sink):
            raise ConfigError("sink={…} maps type patterns such as 'payment.*' to sinks")
        return tuple(sink.items())
    return (("*", sink),)


class Pipe:
    """A sink, and the one batch that is on its way to it."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.keeps_order: bool = getattr(sink, "keeps_order", False)
        self.task: asyncio.Task[None] | None = None
        self._losses = 0
        self._back_at = 0.0

    @property
    def away_seconds(self) -> float:
        """How long nothing is to be handed to it: until its batch is through, or its pause is over."""
        return float("inf") if self.task is not None else max(0.0, self._back_at - time.monotonic())

    def start(
        self, sending: Callable[[], Awaitable[bool]], pause: Callable[[int], float]
    ) -> asyncio.Task[None]:
        """Hand it a batch. `sending` says whether the broker took anything."""

        async def run() -> None:
            reached = await sending()
            self._losses = 0 if reached else self._losses + 1
            # Rows wait by themselves, each for its own time; without this a long outage would write to
            # every row of a long outbox, again and again.
            self._back_at = time.monotonic() + (0.0 if reached else pause(self._losses))

        self.task = asyncio.create_task(run())
        return self.task

    async def publish(self, batch: Sequence[Outgoing]) -> list[BaseException | None]:
        """Confirmations in the batch's order. Never raises for a sink that does."""
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_SECONDS):
                answers = await self.sink.publish([row.message for row in batch])
        except TimeoutError:
            return [BrokerUnavailable(f"sink {self.sink.name} did not confirm in time")] * len(batch)
        except asyncio.CancelledError:
            if is_asked():
                raise
            return [BrokerUnavailable(f"sink {self.sink.name} gave up what was on its way")] * len(batch)
        except Exception as error:
            return [error] * len(batch)
        if len(answers) != len(batch):
            return [BrokerError(f"sink {self.sink.name} did not answer for every message")] * len(batch)
        return answers


class Pipes:
    """Every sink of a relay, and which type goes to which."""

    def __init__(self, sinks: Routes) -> None:
        self._patterns = [pattern for pattern, _ in sinks]
        by_sink = {id(sink): Pipe(sink) for _, sink in sinks}
        self._routes = [by_sink[id(sink)] for _, sink in sinks]
        self.all = list(by_sink.values())
        self.pause: Callable[[int], float] = pause_seconds
        self._known: dict[str, Pipe | None] = {}

    def of(self, kind: str) -> Pipe | None:
        """The pipe of the first pattern that fits this type; None when none does."""
        if kind not in self._known:
            if len(self._known) >= TYPES_MAX:
                self._known.clear()
            fits = (pipe for pattern, pipe in self._pairs() if fnmatch.fnmatchcase(kind, pattern))
            self._known[kind] = next(fits, None)
        return self._known[kind]

    def knows(self, kind: str) -> bool:
        """Whether this type has been seen before."""
        return kind in self._known

    def away(self) -> list[str]:
        """Known types that are not to be taken now."""
        return [kind for kind, pipe in self._known.items() if pipe is not None and pipe.away_seconds > 0]

    def wait_seconds(self, longest: float) -> float:
        """How long until a pipe's pause is over, `longest` at most."""
        return min(longest, *(seconds for pipe in self.all if (seconds := pipe.away_seconds) > 0), longest)

    def _pairs(self) -> list[tuple[str, Pipe]]:
        return list(zip(self._patterns, self._routes, strict=True))
