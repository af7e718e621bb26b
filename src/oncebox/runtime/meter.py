"""What a process counts and times for metrics, in memory and in few series. Nothing here knows how it is read."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds; what takes longer is counted above the last."""
LAG_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0
)  # fmt: skip
"""The same for how old a message is when its effects are committed, which may be days after an outage."""
OTHER = "other"
"""Stands for every type that no handler names: types come from outside, and series must stay few."""


class Durations(msgspec.Struct):
    """How long calls took: how many per bucket, the last one being "longer", and all of them together."""

    counts: list[int]
    seconds: float = 0.0


class Snapshot(msgspec.Struct):
    """Everything that was counted, as it can be written down and added up."""

    messages: list[tuple[str, str, str, int]] = []
    """Consumer, type, outcome and how many."""
    durations: list[tuple[str, str, Durations]] = []
    """Consumer, type and how long the handler took."""
    lags: list[tuple[str, str, Durations]] = []
    """Consumer, type and how old messages were when their effects were committed."""
    purged: dict[str, int] = {}
    purge_failures: int = 0
    archived: dict[str, int] = {}
    archive_failures: dict[str, int] = {}


class Meter:
    """Counts from any thread. `types_of` gives the types a consumer's handlers name."""

    def __init__(self, types_of: Callable[[str], Iterable[str]]) -> None:
        self._types_of = types_of
        self._named: dict[str, frozenset[str]] = {}
        self._messages: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], Durations] = {}
        self._lags: dict[tuple[str, str], Durations] = {}
        self._lock = threading.Lock()
        self.timed: Callable[[str, str, float], None] | None = None
        """Told of each call too, where somebody keeps durations in a form of their own."""
        self.lagged: Callable[[str, str, float], None] | None = None
        """The same for lags."""

    def _label(self, consumer: str, kind: str) -> str:
        named = self._named.get(consumer)
        if named is None:
            named = self._named[consumer] = frozenset(self._types_of(consumer))
        return kind if kind in named else OTHER

    def count(self, consumer: str, kind: str, outcome: str) -> None:
        """One delivery, or one stored message, ended so."""
        key = consumer, self._label(consumer, kind), str(outcome)
        with self._lock:
            self._messages[key] += 1

    def time(self, consumer: str, kind: str, seconds: float) -> None:
        """One call of a handler took so long, whatever came of it."""
        key = consumer, self._label(consumer, kind)
        self._add(self._durations, BUCKETS, key, seconds)
        if self.timed is not None:
            self.timed(*key, seconds)

    def lag(self, consumer: str, kind: str, seconds: float) -> None:
        """One message's effects were committed so long after it was made. Clocks differ: never less than nothing."""
        key = consumer, self._label(consumer, kind)
        seconds = max(0.0, seconds)
        self._add(self._lags, LAG_BUCKETS, key, seconds)
        if self.lagged is not None:
            self.lagged(*key, seconds)

    def _add(
        self,
        table: dict[tuple[str, str], Durations],
        bounds: tuple[float, ...],
        key: tuple[str, str],
        seconds: float,
    ) -> None:
        with self._lock:
            found = table.get(key)
            if found is None:
                found = table[key] = Durations([0] * (len(bounds) + 1))
            found.counts[bisect_left(bounds, seconds)] += 1
            found.seconds += seconds

    def snapshot(self) -> Snapshot:
        """A copy of what was counted until now."""
        with self._lock:
            return Snapshot(
                messages=[(*key, n) for key, n in self._messages.items()],
                durations=_copied(self._durations),
                lags=_copied(self._lags),
            )


def add_up(snapshots: Iterable[Snapshot]) -> Snapshot:
    """All of them as one."""
    messages: Counter[tuple[str, str, str]] = Counter()
    durations: dict[tuple[str, str], Durations] = {}
    lags: dict[tuple[str, str], Durations] = {}
    purged: Counter[str] = Counter()
    failures = 0
    archived: Counter[str] = Counter()
    unarchived: Counter[str] = Counter()
    for snapshot in snapshots:
        for consumer, kind, outcome, n in snapshot.messages:
            messages[consumer, kind, outcome] += n
        _add_to(durations, snapshot.durations)
        _add_to(lags, snapshot.lags)
        purged.update(snapshot.purged)
        failures += snapshot.purge_failures
        archived.update(snapshot.archived)
        unarchived.update(snapshot.archive_failures)
    return Snapshot(
        messages=[(*key, n) for key, n in sorted(messages.items())],
        durations=[(*key, found) for key, found in sorted(durations.items())],
        lags=[(*key, found) for key, found in sorted(lags.items())],
        purged=dict(sorted(purged.items())),
        purge_failures=failures,
        archived=dict(sorted(archived.items())),
        archive_failures=dict(sorted(unarchived.items())),
    )


def _copied(table: dict[tuple[str, str], Durations]) -> list[tuple[str, str, Durations]]:
    return [(*key, Durations(list(found.counts), found.seconds)) for key, found in table.items()]


def _add_to(table: dict[tuple[str, str], Durations], those: Iterable[tuple[str, str, Durations]]) -> None:
    for consumer, kind, found in those:
        known = table.get((consumer, kind), Durations([0] * len(found.counts)))
        counts = [a + b for a, b in zip(known.counts, found.counts, strict=True)]
        table[consumer, kind] = Durations(counts, known.seconds + found.seconds)
