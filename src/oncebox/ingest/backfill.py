"""A backfill: lines become messages of one consumer, handled or stored in its mode, in batches.

The ledger is what makes it resumable: a line that was taken before is a duplicate. Decides which lines
are taken and when they are tried again; reading, and telling people, is left to others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.codec.payloads import nested_too_deep
from oncebox.consumer import Consumer
from oncebox.core.outcomes import Answer
from oncebox.core.work import Item
from oncebox.errors import Conflict, DatabaseUnavailable, LockBusy, OnceboxError
from oncebox.identity import Envelope, Identity, field
from oncebox.identity.cloudevents import STRUCTURED, is_structured
from oncebox.ingest.lines import Line
from oncebox.runtime.taking import STORE_MAX
from oncebox.runtime.workers import pause_seconds

INLINE_BATCH = 100
LATER_MAX = 1000
"""Most lines that wait for another attempt; beyond that, reading waits for them."""
PATIENCE_SECONDS = 60.0
"""How long a database that goes away in the middle is waited for."""

Take = Callable[[list[Item]], None]


class Stopped(BaseException):
    """Raised by a signal while something is waited for: a pipe may never give another line."""


class _Later(NamedTuple):
    due: float
    line: Line


class Ingest:
    """One run over a file. `rejected` is told of each line that is no message, with the reason."""

    def __init__(
        self,
        consumer: Consumer,
        identity: Identity,
        take: Take,
        *,
        file: str,
        key: field | None = None,
        rejected: Callable[[Line, str], None] = lambda line, reason: None,
        progress: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.consumer = consumer
        self.outcomes: Counter[str] = Counter()
        self.lines = 0
        """Lines that were looked at; empty ones are none."""
        self.rejects = 0
        self.last = 0
        """The last line before which everything is on record, or rejected."""
        self.stopping = False
        self.waiting = False
        """For a line, or for a time: nothing is in hand that an exception could harm."""
        self._identity = identity
        self._take = take
        self._file = file
        self._key = key
        self._rejected = rejected
        self._progress = progress
        self._sleep = sleep
        self._later: list[_Later] = []
        stored = consumer.policy.mode == "stored"
        self._batch_max = STORE_MAX if stored else max(INLINE_BATCH, consumer.policy.batch)
        self._had_database = False

    def run(self, lines: Iterable[Line], from_line: int = 1) -> None:
        """Take every line. Stops in order when `stopping` is set: what was read is taken.

        Raises what the reading raised, after taking what was read, and DatabaseUnavailable when the database
        stays away; `last` says how far it came.
        """
        batch: list[tuple[Line, Item]] = []
        end, damage = from_line - 1, None
        reading = iter(lines)
        while not self.stopping:
            try:
                self.waiting = True
                line = next(reading, None)
            except Stopped:
                break
            except OnceboxError as error:
                damage = error  # it ends the reading, not what was read before
                break
            finally:
                self.waiting = False
            if line is None:
                break
            if line.number < from_line:
                continue
            end = line.number
            if (item := self._item(line)) is not None:
                batch.append((line, item))
            if len(batch) >= self._batch_max:
                self._flush(batch, end)
                batch = []
        self._flush(batch, end)
        while self._later and not self.stopping:
            self._flush([], end)
        if damage is not None:
            raise damage

    @property
    def pending(self) -> int:
        """Lines that failed and were to be tried again when the run was stopped."""
        return len(self._later)

    def _item(self, line: Line) -> Item | None:
        """The line as a message of the consumer, or None when it was rejected or is empty."""
        if not line.body.strip() and not line.problem:
            return None
        self.lines += 1
        item, reason = self.read(line)
        if reason:
            self.rejects += 1
            self._rejected(line, reason)
        return item

    def read(self, line: Line) -> tuple[Item | None, str]:
        """The line as a message of the consumer, or None and why it is none."""
        if reason := line.problem or _unreadable(line.body):
            return None, reason
        delivery = self._delivery(line)
        resolved = self._identity.resolve(delivery)
        item = self.consumer.intake.from_resolved(delivery, resolved)
        asked = resolved.id is None and self._identity.id is None
        reason = "no id; name where it is with --id-field" if asked else self._refusal(item, resolved.why)
        return (None, reason) if reason else (item, "")

    def _refusal(self, item: Item, why: str) -> str:
        """Why nobody can handle it. Not among the dead: the file is here, and so is who can mend it."""
        if item.refusal is not None:
            return why or str(item.refusal[1])
        if not item.message.type and item.handler is None and self.consumer.registry.all():
            # A stored message of another type may be for a newer deployment; of none, it is for nobody.
            return "no type; name it with --type or --type-field"
        return ""

    def _again(self, line: Line) -> Item:
        delivery = self._delivery(line)
        return self.consumer.intake.from_resolved(delivery, self._identity.resolve(delivery))

    def _delivery(self, line: Line) -> Delivery:
        kind = STRUCTURED if is_structured(line.body) else "application/json"
        delivery = Delivery(
            body=line.body,
            properties={"content_type": kind},
            provenance={"file": self._file, "line": line.number},
        )
        if self._key is not None:
            delivery.key = self._key(Envelope(delivery))
        return delivery

    def _flush(self, batch: list[tuple[Line, Item]], end: int) -> None:
        """Take a batch, and with it what is due again; until all of it has an outcome."""
        due = self._due(wait=not batch or len(self._later) >= LATER_MAX)
        batch = [*batch, *((line, self._again(line)) for line in due)]
        if batch:
            self._take_surely([item for _, item in batch])
        for line, item in batch:
            assert item.outcome is not None
            if item.outcome.answer is Answer.ACK:
                self.outcomes[str(item.outcome.status)] += 1
            else:
                self._later.append(_Later(time.monotonic() + item.outcome.delay_seconds, line))
        self.last = min([end, *(later.line.number - 1 for later in self._later)])
        self._progress()

    def _due(self, *, wait: bool) -> list[Line]:
        if not self._later:
            return []
        self._later.sort(key=lambda later: later.due)
        if wait and not self.stopping:
            self._pause(max(0.0, self._later[0].due - time.monotonic()))
        now = time.monotonic()
        due = [later.line for later in self._later if later.due <= now]
        self._later = [later for later in self._later if later.due > now]
        return due

    def _take_surely(self, items: list[Item]) -> None:
        """Until every item has an outcome. A database that was there before is waited for, within reason."""
        lost, since = 0, 0.0
        while left := [item for item in items if item.outcome is None]:
            try:
                self._take(left)
                self._had_database = True
            except (DatabaseUnavailable, LockBusy, Conflict) as error:
                lost += 1
                since = since or time.monotonic()
                late = time.monotonic() - since > PATIENCE_SECONDS
                never = isinstance(error, DatabaseUnavailable) and not self._had_database
                if never or late or self.stopping:
                    raise
                self._pause(pause_seconds(lost))

    def _pause(self, seconds: float) -> None:
        try:
            self.waiting = True
            self._sleep(seconds)
        except Stopped:
            return
        finally:
            self.waiting = False


def _unreadable(body: bytes) -> str:
    """Why the bytes are not JSON, without quoting them; empty when they are."""
    if nested_too_deep(body):
        return "nested too deep"
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        return f"not JSON: {error}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {type(error).__name__}"
    return ""
