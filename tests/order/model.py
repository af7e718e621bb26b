"""What must come of one lane, as a dictionary would have it: no locks, no rows, no clock."""

from typing import NamedTuple

FIRST = 1


class Refused(Exception):
    """A person asked for what can't be done."""


class Place(NamedTuple):
    version: int
    arrival: int


class Lane:
    """One key of one consumer. At most one message has the turn, and only that one runs."""

    def __init__(self, by: str, on_gap: str) -> None:
        self.by_sequence = by == "sequence"
        self.on_gap = on_gap
        self.is_known = False
        self.places: dict[str, Place] = {}
        self.queue: set[str] = set()
        self.dead: set[str] = set()
        self.turn: str | None = None
        self.blocked: str | None = None
        self.last: int | None = None
        self.skipped: set[int] = set()
        self.applied: list[str] = []

    @property
    def is_gap(self) -> bool:
        return bool(self.by_sequence and self.queue and self.turn is None and self.blocked is None)

    def deliver(self, name: str, version: int) -> None:
        self.is_known = True
        if self.by_sequence and self.last is None:
            self.last = FIRST - 1
        if name not in self.places:
            self.places[name] = Place(version, len(self.places))
            self.queue.add(name)
        self._advance()

    def applies(self, name: str) -> None:
        self.applied.append(name)
        self._leaves(name)

    def dies(self, name: str) -> None:
        self.dead.add(name)
        self.blocked = name
        self._leaves(name)

    def redrive(self, name: str) -> None:
        version = self.places[name].version
        self._decided(name)
        self.queue.add(name)
        if self.last is None:
            self.last = version - 1
        elif version <= self.last:
            self.skipped.add(version)
        self._advance()

    def discard(self, name: str) -> None:
        self._decided(name)
        self._advance()

    def unblock(self) -> None:
        if self.blocked is None:
            raise Refused
        self.blocked = None
        self._advance()

    def skip(self) -> None:
        if not self._is_short():
            raise Refused
        self._pass_over(keep=False)

    def reset(self, last: int | None) -> None:
        if not self.is_known:
            raise Refused
        first = self._first()
        self.last = last if last is not None or first is None else first - 1
        self.skipped, self.blocked = set(), None
        self._advance()

    def close_gap(self) -> None:
        if not self.is_gap or not self._is_short():
            return
        if self.on_gap == "park":
            self.dead |= self.queue
            self.queue = set()
        else:
            self._pass_over(keep=self.on_gap == "proceed")

    def _pass_over(self, *, keep: bool) -> None:
        first = self._first()
        assert first is not None
        assert self.last is not None
        self.skipped |= set(range(self.last + 1, first)) if keep else set()
        self.last = first - 1
        self._advance()

    def _is_short(self) -> bool:
        """Whether the next version is missing while a later one waits."""
        first = self._first()
        return (
            self.by_sequence
            and self.turn is None
            and None not in (first, self.last)
            and first > self.last + 1  # type: ignore[operator]
        )

    def _first(self) -> int | None:
        waiting = [self.places[name].version for name in self.queue if name != self.turn]
        return min(waiting, default=None) if self.by_sequence else None

    def _decided(self, name: str) -> None:
        self.dead.remove(name)
        if self.blocked == name:
            self.blocked = None

    def _leaves(self, name: str) -> None:
        version = self.places[name].version
        self.queue.remove(name)
        self.turn = None
        if self.last is None or version == self.last + 1:
            self.last = version
        self.skipped.discard(version)
        self._advance()

    def _advance(self) -> None:
        if self.by_sequence:
            self.queue = {
                name
                for name in self.queue
                if name == self.turn
                or self.last is None
                or self.places[name].version > self.last
                or self.places[name].version in self.skipped
            }
        if self.turn is None and self.blocked is None:
            self.turn = self._next()

    def _next(self) -> str | None:
        if not self.by_sequence:
            return min(self.queue, key=lambda name: self.places[name].arrival, default=None)
        late = {name for name in self.queue if self.places[name].version in self.skipped}
        following = {
            name
            for name in self.queue
            if self.last is not None and self.places[name].version == self.last + 1
        }
        return min(late or following, key=lambda name: self.places[name], default=None)
