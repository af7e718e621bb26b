"""Two contenders in turns: base, contender, base, contender, … base.

Every slice of the contender is compared with the mean of the two base slices around it, so that a
machine that gets slower or busier hits both sides. The figure is the median of those ratios, the
spread its quartiles.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contenders.base import Contender
from benchmarks.stage import Place

FIRST_COUNT = 100
COUNT_MAX = 60_000
ROUNDS_MIN = 3


@dataclass(frozen=True)
class Pace:
    """How many pairs of which length; on a busy machine fewer, once `limit_seconds` are over."""

    rounds: int
    slice_seconds: float
    limit_seconds: float = 60.0


@dataclass(frozen=True)
class Slice:
    """A short run of one contender."""

    messages: int
    seconds: float
    client_cpu: float
    server_cpu: float | None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass
class Duel:
    """What came of a comparison."""

    base: Contender
    contender: Contender
    base_slices: list[Slice] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    effects: tuple[int, int] = (0, 0)
    """How many there are, and how many there should be."""

    @property
    def ratios(self) -> list[float]:
        around = zip(self.base_slices, self.base_slices[1:], strict=False)
        return [s.rate / ((a.rate + b.rate) / 2) for s, (a, b) in zip(self.slices, around, strict=True)]

    @property
    def value(self) -> float:
        return statistics.median(self.ratios)

    def as_json(self) -> dict[str, Any]:
        """The ratio, its spread and the absolutes behind it."""
        return {
            "value": round(self.value, 3),
            "spread": spread(self.ratios),
            "driver": self.contender.driver,
            "contender": summary(self.contender, self.slices),
            "base": summary(self.base, self.base_slices),
            "verified": self.effects[0] == self.effects[1],
            "effects": {"found": self.effects[0], "expected": self.effects[1]},
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Quartiles and the number of pairs."""
    low, _, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    )
    return {"q1": round(low, 3), "q3": round(high, 3), "pairs": len(values)}


def summary(contender: Contender, slices: Sequence[Slice]) -> dict[str, Any]:
    """Medians of one side: messages per second, and CPU per message on both ends."""
    messages = sum(s.messages for s in slices)
    server = [s.server_cpu for s in slices if s.server_cpu is not None]
    return {
        "name": contender.label,
        "driver": contender.driver,
        "concurrency": contender.concurrency,
        "per_second": round(statistics.median(s.rate for s in slices), 1),
        "client_cpu_us": micro(sum(s.client_cpu for s in slices), messages) if contender.in_process else None,
        "server_cpu_us": micro(sum(server), messages) if server and contender.stays_connected else None,
        "messages_per_slice": round(statistics.median(s.messages for s in slices)),
    }


def micro(seconds: float, messages: int) -> float:
    """Microseconds per message; over all slices, since the server's clock ticks only every 10 ms."""
    return round(1e6 * seconds / messages, 1)


async def duel(stage: Place, base: Contender, contender: Contender, pace: Pace) -> Duel:
    """Open both, warm up, measure in turns, check that every effect happened once."""
    stage.reset()
    result = Duel(base, contender)
    ends = time.monotonic() + pace.limit_seconds
    await base.open(stage)
    try:
        await contender.open(stage)
        try:
            sides = (Side(stage, base, pace.slice_seconds), Side(stage, contender, pace.slice_seconds))
            for side in sides:
                await side.warm_up(ends)
            for turn in range(pace.rounds):
                if turn >= ROUNDS_MIN and time.monotonic() > ends:
                    break
                result.base_slices.append(await sides[0].slice())
                result.slices.append(await sides[1].slice())
            result.base_slices.append(await sides[0].slice())
        finally:
            await contender.close()
    finally:
        await base.close()
    result.effects = (contender.balance(stage), base.effects() + contender.effects())
    return result


class Side:
    """One contender with its slices sized so that each takes about the time asked for."""

    def __init__(self, stage: Place, contender: Contender, seconds: float) -> None:
        self.stage = stage
        self.contender = contender
        self.seconds = seconds
        self.count = min(FIRST_COUNT, contender.count_max)

    async def warm_up(self, ends: float) -> None:
        """Prepared statements, caches and the right size of a slice; not counted."""
        await self.contender.prime()
        for turn in range(3):
            if not turn or time.monotonic() < ends:
                await self.slice()

    async def slice(self) -> Slice:
        messages = self.contender.load.make(self.count)
        gc.collect()
        server = self.stage.server_cpu()
        client = time.process_time()
        seconds = await self.contender.run(messages)
        client = time.process_time() - client
        after = self.stage.server_cpu()
        done = Slice(
            len(messages), seconds, client, None if server is None or after is None else after - server
        )
        wanted = round(done.rate * self.seconds)
        most = min(self.contender.count_max, 4 * self.count, COUNT_MAX)
        self.count = max(self.contender.count_min, min(wanted, most))
        return done
