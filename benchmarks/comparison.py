"""One row to measure: two contenders, by driver, and the bar their ratio has to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.contenders.base import Contender
from benchmarks.contenders.handmade_asyncpg import HandmadeAsyncpg
from benchmarks.contenders.handmade_psycopg import HandmadePsycopg
from benchmarks.contenders.handmade_psycopg_async import HandmadePsycopgAsync
from benchmarks.load import Load

Make = Callable[[str], Contender]

HANDMADE: dict[str, Callable[[str, int, Load], Contender]] = {
    "psycopg": HandmadePsycopg,
    "psycopg-async": HandmadePsycopgAsync,
    "asyncpg": HandmadeAsyncpg,
}

BOTH = ("psycopg", "asyncpg")
"""The first one is what QUICK measures."""
ASYNCPG_FIRST = ("asyncpg", "psycopg")
ALL = (*BOTH, "psycopg-async")


@dataclass(frozen=True)
class Comparison:
    """The contender's rate over the base's, at least `bar` if there is one."""

    name: str
    what: str
    base: Make
    contender: Make
    drivers: tuple[str, ...] = BOTH
    bar: float | None = None
    place: str = "postgresql"
    slice_factor: float = 1.0
    """Slices longer by this: for what is slow to start or moves in bursts."""
    quick: bool = True
    """Whether QUICK measures it."""


def handmade(flow: str, concurrency: int = 1, load: Callable[[], Load] = Load) -> Make:
    """A hand-written flow on the driver asked for."""

    def make(driver: str) -> Contender:
        return HANDMADE[driver](flow, concurrency, load())

    return make


def unprotected(concurrency: int = 1, load: Callable[[], Load] = Load) -> Make:
    """A: BEGIN; effect; COMMIT."""
    return handmade("unprotected", concurrency, load)
