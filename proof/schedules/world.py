"""One database on which schedules are run, each with a consumer of its own, and then judged."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from oncebox import App, Backoff, Message
from oncebox.core.effects import work_effect
from oncebox.core.inline import stream
from oncebox.core.keys import close_gaps
from oncebox.core.leased import work_long
from oncebox.core.outcomes import Answer
from oncebox.core.reap import reap_lapsed
from oncebox.core.receiving import receive
from oncebox.core.run import run
from oncebox.core.steps import Op, Publish, Step
from oncebox.core.stored import bury_unknown, work_batch
from oncebox.core.work import Item, Work
from oncebox.drivers.database import Database
from oncebox.identity import fingerprint
from oncebox.policy import Policy
from oncebox.runtime.performer import Performer
from oncebox.runtime.schema import migrate
from proof.clearing import clear, growing
from proof.schedules.handlers import registry
from proof.schedules.hands import Hands, LiteHands, PostgresHands
from proof.schedules.judging import judge
from proof.schedules.ordering import ORDERING, by_alphabet
from tests.crash.checker import Key, Sent
from tests.crash.effects import create_table, reader

AT_ONCE = Backoff(attempts=3, base_seconds=0)
RECOVERING = {
    ("inline", ""): Policy(mode="inline", retry=AT_ONCE),
    ("stored", ""): Policy(mode="stored", retry=AT_ONCE, batch=20, unknown_type_seconds=0.0),
    ("stored", "key"): Policy(mode="stored", batch=20, **ORDERING["key"]),
    ("stored", "sequence"): Policy(mode="stored", batch=20, **ORDERING["sequence"]),
}
KINDS = {"l": "long", "x": "call", "u": "nobody"}
"""Message ids that begin so have a type of their own; all others are short."""
ROUNDS = 12
HANDS = 3


class NoSink:
    """What `App(sink=…)` asks for; the scheduler publishes by itself."""

    name = "none"


class World:
    """A database, three workers' hands, and what was seen in the schedule that is running."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url)
        self.is_sqlite = self.database.dialect == "sqlite"
        self.prefix = "oncebox_" if self.is_sqlite else "oncebox."
        migrate(self.database)
        create_table(url)
        self.reader = reader(url)
        kind = LiteHands if self.is_sqlite else PostgresHands
        self.hands: list[Hands] = [kind(self.database) for _ in range(HANDS)]
        posted = [hands for hands in self.hands if isinstance(hands, PostgresHands)]
        for hands in posted:
            hands.is_waiting = self._is_waiting
            hands.others = [other for other in posted if other is not hands]
        self._names = itertools.count(1)
        self._growing = growing(self.reader)
        self.app = App(url, sink=NoSink())  # type: ignore[arg-type]
        self.registries = {mode: registry(self, mode) for mode in ("inline", "stored")}
        self.name = ""
        self.reset()

    def close(self) -> None:
        for hands in self.hands:
            hands.close()
        self.reader.close()

    def clear(self) -> None:
        """Forget earlier schedules."""
        clear(self.reader, self._growing)

    def _is_waiting(self, pids: list[int]) -> bool:
        (row,) = self.reader.execute(
            "SELECT bool_or(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) AS p(pid)", (pids,)
        ).fetchall()
        return bool(row[0])

    # One schedule.

    def reset(self) -> None:
        """A consumer of its own, and nothing seen yet."""
        self.name = f"c{next(self._names)}"
        self.words: dict[int, str] = {}
        self.sends = False
        self.queues = False
        """An inline consumer's queue has something, too."""
        self.ordering = ""
        """Messages are of one key: in order by `key` or by `sequence`."""
        self.old: Key | None = None
        """What is past its window."""
        self.calls: list[tuple[Key, str]] = []
        self.sent: list[Sent] = []
        self.acked: list[Key] = []
        self.pending: dict[int, Message] = {}
        self.published: list[str] = []
        self.workers: list[str] = []
        self.crashed: set[str] = set()
        self._numbers = itertools.count(1)

    def message(self, spec: str) -> Message:
        """`a`; `a!` with another payload; `a*` delivered before."""
        payload = b'{"other": 1}' if "!" in spec else b"{}"
        kind = KINDS.get(spec[0], "t")
        return Message(id=spec[0], type=kind, source="s", payload=payload, deliveries=1 + ("*" in spec))

    def deliver(self, spec: str, mode: str) -> Item:
        """A delivery of it, which is to be acked."""
        message = self.message(spec)
        self.sent.append(Sent((self.name, "s", message.id), message.payload))
        number = next(self._numbers)
        self.pending[number] = message
        return self._item(message, number, mode)

    def _item(self, message: Message, number: int, mode: str) -> Item:
        mark = fingerprint(message.type, message.payload, "raw")
        item = Item(message, mark, self.registries[mode].find(message.type), number)
        if self.ordering:
            item.lane = "k"
            item.version = by_alphabet(message) if self.ordering == "sequence" else None
        return item

    def settle(self, items: Sequence[Item]) -> None:
        """The broker's answers."""
        for item in items:
            assert item.outcome is not None
            if item.delivery in self.pending and item.outcome.answer is Answer.ACK:
                del self.pending[item.delivery]
                self.acked.append((self.name, item.message.source, item.message.id))

    def work(self, policy: Policy) -> Work:
        """A new worker's constants."""
        registry = self.registries[policy.mode]
        worker = f"{self.name}-w{len(self.workers)}"
        self.workers.append(worker)
        return Work(
            self.name,
            self.database.queries,
            policy,
            worker=worker,
            slot=1,
            types=registry.short_types(),
            long_types=registry.long_types(),
            effect_types=registry.effect_types(),
            handler=registry.find,
            outlets=self.app.outlets(policy.mode),
            monotonic=lambda: 0.0,  # how long a schedule takes decides nothing
        )

    def beat(self) -> None:
        """Everybody's heart, once."""
        now = time.time_ns() // 1000
        columns, values = (", started, heartbeat", f", {now}, {now}") if self.is_sqlite else ("", "")
        rows = ", ".join(f"('{worker}', 'here', 1{values})" for worker in self.workers)
        self.reader.execute(
            f"INSERT INTO {self.prefix}worker (id, host, pid{columns}) VALUES {rows} ON CONFLICT DO NOTHING"
        )

    def retire(self, workers: list[str]) -> None:
        """As processes do that end in order."""
        names = ", ".join(f"'{worker}'" for worker in workers)
        self._text(
            f"DELETE FROM {self.prefix}hand WHERE worker IN ({names});\n"
            f"DELETE FROM {self.prefix}worker WHERE id IN ({names});\n"
        )

    def equip(self, hands: Hands, work: Work, items: list[Item]) -> None:
        """Give the hands this worker's side of the bargain."""
        hands.perform = Performer(
            work, hands.session, hands.side, is_async=False, settle=self.settle,
            next_item=lambda: items.pop(0) if items and work.policy.batch == 1 else None,
        )  # fmt: skip
        hands.perform.hands[Publish] = self._publish

    def _publish(self, step: Publish) -> list[BaseException | None]:
        self.published += [each.message.id for each in step.outgoing]
        return [None] * len(step.outgoing)

    def store(self, *specs: str) -> None:
        """Messages that wait in the queue already."""
        items = [self.deliver(spec, "stored") for spec in specs]
        self._run(receive(self._recovering("stored"), items))

    def work_off(self, policy: Policy, word: str = "") -> None:
        """One turn of a worker before the schedule begins."""
        work = self.work(policy)
        self.equip(self.hands[0], work, [])
        self.words[id(self.hands[0].session.raw)] = word
        self._run(work_batch(work))

    def has(self, message_id: str) -> bool:
        """Whether it was sent."""
        return any(sent.key[2] == message_id for sent in self.sent)

    def later(self) -> str:
        """An hour passes: leases lapse, hearts have not beaten for long, what was put off is due.

        Rows that somebody has locked are in hand; their time does not matter.
        """
        p = self.prefix
        if self.is_sqlite:
            hour = 3_600_000_000
            return (
                f"UPDATE {p}queue SET due = due - {hour} WHERE consumer = '{self.name}';\n"
                f"UPDATE {p}worker SET heartbeat = heartbeat - {hour};\n"
                f"UPDATE {p}hand SET at = at - {hour};\nUPDATE {p}slot SET until = until - {hour};\n"
            )
        skip = "FOR UPDATE SKIP LOCKED"
        return (
            f"UPDATE {p}queue SET due = due - interval '1 hour' WHERE seq IN "
            f"(SELECT seq FROM {p}queue WHERE consumer = '{self.name}' {skip}); "
            f"UPDATE {p}worker SET heartbeat = heartbeat - interval '1 hour' WHERE id IN "
            f"(SELECT id FROM {p}worker {skip}); "
            f"UPDATE {p}hand SET at = at - interval '1 hour' WHERE (worker, slot) IN "
            f"(SELECT worker, slot FROM {p}hand {skip}); "
            f"UPDATE {p}slot SET until = until - interval '1 hour' WHERE slot IN (SELECT slot FROM {p}slot {skip})"
        )

    def gaps_later(self) -> str:
        """The same hour for keys that wait for a version."""
        p, own = self.prefix, f"consumer = '{self.name}'"
        if self.is_sqlite:
            return f"UPDATE {p}key SET gap = gap - 3600000000 WHERE {own}"
        held = f"SELECT key FROM {p}key WHERE {own} FOR UPDATE SKIP LOCKED"
        return f"UPDATE {p}key SET gap = gap - interval '1 hour' WHERE {own} AND key IN ({held})"

    # Afterwards.

    def _recovering(self, mode: str) -> Work:
        work = self.work(RECOVERING[mode, self.ordering])
        self.equip(self.hands[0], work, [])
        return work

    def _run(self, op: Op[Any]) -> Any:
        return run(op, self._perform)

    def _perform(self, step: Step) -> Any:
        return self.hands[0].perform(step)

    def recover(self, mode: str) -> None:
        """As fresh workers would: reap, deliver again, work off the queue, until all has ended."""
        self.words.clear()
        if not self.pending and mode == "inline" and not self.crashed and not self.queues:
            self.retire(self.workers)
            return
        self.retire([worker for worker in self.workers if worker not in self.crashed])
        work = self._recovering(mode)
        if self.crashed:
            self._text(self.later())
            self._run(reap_lapsed(work, 60.0))
        for _ in range(ROUNDS):
            again = [
                self._item(_redelivered(message), number, mode) for number, message in self.pending.items()
            ]
            if mode == "inline":
                for item in again:
                    self._run(stream(work, item))
            elif again:
                self._run(receive(work, again))
            queued = self._queued() if mode == "stored" or self.queues else {}
            if queued:
                self._text(self._due_now())
                self._work_off(work, queued)
            if not self.pending and not queued:
                break
        self.retire(self.workers)

    def judge(self) -> list[str]:
        """What the checker says about the end."""
        return judge(self)

    def _due_now(self) -> str:
        """Time passes for what waits; nobody has it in hand any more."""
        hour = 3_600_000_000 if self.is_sqlite else "interval '1 hour'"
        return f"UPDATE {self.prefix}queue SET due = due - {hour} WHERE consumer = '{self.name}'"

    def _text(self, text: str) -> None:
        self.hands[0].session.execute_text(text)

    def _queued(self) -> dict[str, int]:
        """The types of what waits, and how often processes have died with one of each."""
        mark = "?" if self.is_sqlite else "%s"
        text = f"SELECT type, max(deaths) FROM {self.prefix}queue WHERE consumer = {mark} GROUP BY type"
        return dict(self.reader.execute(text, (self.name,)).fetchall())

    def _work_off(self, work: Work, queued: dict[str, int]) -> None:
        """One turn of each flow that has something to do."""
        if self.ordering == "sequence":
            self._text(self.gaps_later())
            self._run(close_gaps(work))
        if "t" in queued:
            self._run(work_batch(work))
        if "long" in queued:
            self._run(work_long(work))
        if "call" in queued:
            self._run(work_effect(work))
        if any(queued.values()):
            self._run(work_batch(work, suspect=True))
        if "nobody" in queued:
            self._run(bury_unknown(work, self.registries["stored"].names()))


def _redelivered(message: Message) -> Message:
    return Message(
        id=message.id, type=message.type, source=message.source, payload=message.payload,
        deliveries=message.deliveries + 1,
    )  # fmt: skip
