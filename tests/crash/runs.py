"""One cell from its preparation to its judgement: what happens, how it is recovered from, what the checker says."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from oncebox.core.steps import Call
from tests.crash import deciding, sending
from tests.crash import events as log
from tests.crash.cells import LEASE_SECONDS, Cell, Place
from tests.crash.checker import Key, Ledger, Seen, Sent, Tables, violations
from tests.crash.deciding import DECISIONS
from tests.crash.effects import tables
from tests.crash.faults import Ended, Fault, Steps, Stuck
from tests.crash.kept import LEAVES_CONNECTIONS_WHOLE
from tests.crash.scenarios import Delivery, Scenario

if TYPE_CHECKING:
    from tests.crash.grid import Bench

RECOVERIES = 20
"""Turns of reaping and redelivering after which a message that is not done counts as stuck."""
_consumers = itertools.count(1)


class Run:
    """One cell from its preparation to its judgement."""

    def __init__(self, bench: Bench, scenario: Scenario) -> None:
        self.bench = bench
        self.scenario = scenario
        name = f"c{next(_consumers)}"
        self.place = Place(
            bench.url, bench.variant, scenario.name, name, str(bench.folder / f"{name}.events")
        )
        self.cell = Cell(self.place)
        self.numbers = itertools.count(1)
        self.deliveries: dict[int, Delivery] = {}
        self.killed: list[int] = []
        self.stuck: list[str] = []
        self.fault: Fault | None = None
        self.forgotten = int(scenario.mode == "inline")
        self.given_up = 0
        """Processes that ended while the database was away."""
        self.twice_broken = False

    @cached_property
    def _recovering(self) -> Cell:
        """What prepares and recovers; to make one takes as long as to use it."""
        return Cell(
            msgspec.structs.replace(self.place, url=self.bench.plain_url, variant=self.bench.recovering)
        )

    def prepare(self) -> None:
        """Bring the database to where the scenario begins."""
        scenario = self.scenario
        if scenario.before:
            self._run([self._new(spec) for spec in scenario.before], [], _arrives(scenario))
            if scenario.runs in DECISIONS:
                self._run([], self._queued(), "stored")
        if claims := [self._new(spec).message(scenario.long) for spec in scenario.claims]:
            deciding.leave_unfinished(self.bench.plain_url, self.place.consumer, claims)
        if scenario.runs.startswith("purge"):
            deciding.let_others_walk(self.bench.reader)
            deciding.make_old(self.bench.reader, self.place.consumer)
        if scenario.runs.startswith("relay"):
            sending.free_slots(self.bench.reader)
        arriving = [self._new(spec) for spec in scenario.deliver]
        if scenario.mode == "stored" and scenario.runs != "receive":
            self._run(arriving, [], "receive")
        if scenario.deaths:
            self._haunt()
            if not scenario.runs.startswith("reap"):
                self._run([], [], "reap")
        if scenario.runs == "gap":
            deciding.let_gaps_grow(self.bench.reader, self.place.consumer)

    def _new(self, spec: str) -> Delivery:
        delivery = Delivery(next(self.numbers), spec)
        self.deliveries[delivery.number] = delivery
        return delivery

    def _haunt(self) -> None:
        """Leave what a worker leaves that died with all of it in hand."""
        sqlite = self.bench.url.startswith("sqlite")
        worker, hand = ("oncebox_worker", "oncebox_hand") if sqlite else ("oncebox.worker", "oncebox.hand")
        ghost = f"ghost-{self.place.consumer}"
        seqs: list[int] = []
        message = None
        if self.scenario.mode == "stored":
            seqs = [row.seq for row in tables(self.bench.reader, self.place.consumer).queue]
        else:
            message = "a"
        mark = "?" if sqlite else "%s"
        extra, value = (", started, heartbeat", ", 0, 0") if sqlite else ("", "")
        self.bench.reader.execute(
            f"INSERT INTO {worker} (id, host, pid{extra}) VALUES ({mark}, 'here', 1{value})", (ghost,)
        )
        extra, value = (", at", ", 0") if sqlite else ("", "")
        self.bench.reader.execute(
            f"INSERT INTO {hand} (worker, slot, consumer, seqs, source, message_id{extra}) "
            f"VALUES ({', '.join([mark] * 6)}{value})",
            (ghost, 1, self.place.consumer, json.dumps(seqs) if sqlite else seqs, message and "s", message),
        )

    def _run(
        self,
        deliveries: list[Delivery],
        waiting: list[str],
        runs: str,
        seconds: float = 20,
        broken: Steps | None = None,
    ) -> None:
        """On connections that are open already, unless something is to be broken on the way."""
        cell = self._recovering.renewed()
        if broken is None:
            steps, lent = Steps(seconds=seconds), self.bench
        else:
            steps, lent, cell.queued = broken, None, self._queued
            cell.kept = self.bench.kept
        try:
            cell.work(deliveries, waiting, steps, runs, lent)
        except Ended:
            self.given_up += 1
            raise
        finally:
            if not steps.is_over:
                self._retire(cell)

    def attempt(self, steps: Steps) -> None:
        """The scenario's own part, in this process."""
        self.cell.queued = self._queued
        if steps.fault is None or steps.fault.what in LEAVES_CONNECTIONS_WHOLE:
            self.cell.kept = self.bench.own
        try:
            self.cell.work(self._unacked(), self._queued(), steps, self.scenario.runs)
        except Stuck as stuck:
            self.stuck.append(f"I5: its worker came to no end: {stuck}")
        except Ended:
            self.given_up += 1
        assert steps.fault is None or steps.happened, f"{steps.fault} was never reached: {steps.trace}"
        if not steps.is_over:
            self._retire(self.cell)

    def attempt_in_child(self, fault: Fault, bug: str = "") -> None:
        """The scenario's own part, in a process that dies of it."""
        child = self.bench.nursery.fork(
            "tests.crash.cells:attempt",
            place=msgspec.to_builtins(self.place),
            fault=[fault.step, fault.when, fault.what],
            deliveries=[msgspec.structs.astuple(delivery) for delivery in self._unacked()],
            waiting=self._queued(),
            runs=self.scenario.runs,
            bug=bug,
        )
        assert child.wait() == -9, f"{fault} did not kill the child:\n{child.output}"
        self.killed.append(child.pid)
        for delivery in self._unacked():
            delivery.deliveries += 1

    def finish(self) -> None:
        """Recover: reap, deliver again what is not acked, work off the queue, until all has ended."""
        for _ in range(RECOVERIES):
            try:
                self._recover()
            except Stuck:
                continue
            if not self._unacked() and not self._queued() and not self._unsent():
                return

    def recover_badly(self, steps: Steps) -> None:
        """A turn of recovery in which something is broken, too."""
        self.twice_broken = True
        try:
            self._recover(steps)
        except (Ended, Stuck):
            return

    def _recover(self, broken: Steps | None = None) -> None:
        scenario = self.scenario
        self._run([], [], "reap", broken=broken)
        if self._unsent():
            time.sleep(LEASE_SECONDS)  # what a dead relay leased is free then
            self._run([], [], "relay", 1, broken)
        if unacked := self._unacked():
            queued = self._queued() if scenario.mode == "inline" else []
            self._run(unacked, queued, _arrives(scenario), 1, broken)
        if scenario.runs in DECISIONS and self._undecided():
            deciding.let_others_walk(self.bench.reader)
            self._run([], [], scenario.runs, 1, broken)
        if scenario.runs == "unknown":
            self._run([], [], "unknown", 1, broken)
        elif queued := self._queued():
            self._run([], queued, scenario.mode, 1, broken)

    def _undecided(self) -> bool:
        """Whoever decides asks again, but for a replay that was done, and a purge: more may be past its window."""
        if self.scenario.runs == "replay":
            return not deciding.replays(self.bench.reader, self.place.consumer)
        if not self.scenario.runs.startswith("purge"):
            return True
        return self._key_of("a") in {row.key for row in tables(self.bench.reader, self.place.consumer).ledger}

    def _retire(self, cell: Cell) -> None:
        """As a process does that ends in order: it leaves nothing in hand."""
        if cell.has_beaten:
            for query in (cell.app.database.queries.retire_hands, cell.app.database.queries.retire):
                self.bench.side(Call(query, {"id": cell.id}))
        cell.events.close()

    def _log(self) -> list[dict[str, Any]]:
        return self.cell.events.all()

    def _unacked(self) -> list[Delivery]:
        acked = {event["number"] for event in self._log() if event["event"] == "ack"}
        return [delivery for number, delivery in self.deliveries.items() if number not in acked]

    def _unsent(self) -> bool:
        """Something is in the outbox, and a relay is at work."""
        if not self.scenario.runs.startswith("relay"):
            return False
        return bool(sending.outgoing(self.bench.reader, self.place.consumer, self.scenario.sends))

    def _queued(self) -> list[str]:
        if self.scenario.mode == "inline" and not self.scenario.order_by and not self.scenario.marked:
            return []
        prefix = "oncebox_" if self.bench.url.startswith("sqlite") else "oncebox."
        text = f"SELECT message_id FROM {prefix}queue WHERE consumer = '{self.place.consumer}' ORDER BY 1"
        return [row[0] for row in self.bench.reader.execute(text).fetchall()]

    def violations(self) -> list[str]:
        """What the checker says about the end."""
        scenario, events = self.scenario, self._log()
        sent = [
            Sent(
                self._key_of(delivery.id),
                delivery.message(scenario.long).payload,
                scenario.endings.get(delivery.spec, "done"),
                "k" if scenario.order_by else None,
            )
            for delivery in self.deliveries.values()
        ]
        if scenario.order_by == "sequence":
            sent.sort(key=lambda each: each.key)
        seen = Seen(
            sent=sent,
            acked=log.acked(events),
            starts=log.starts(events, self.killed),
            # What a broker delivers again because it was told to comes after what it has delivered since.
            ordered=scenario.mode == "stored" or not any(event["event"] == "nack" for event in events),
            deaths=scenario.deaths + len(self.killed) + self.given_up,
            forgotten=self.forgotten,
        )
        found = sending.counted_in(self.bench.reader, self.place.consumer, scenario, events)
        if scenario.marked:
            found = self._marked(found)
        refused = self.fault is not None and self.fault.what in ("error", "conflict", "busy")
        wrong = sending.wrong(scenario, events, refused=refused)
        wrong += deciding.wrong(
            self.bench.reader, self.place.consumer, scenario.runs, events, more=self.twice_broken
        )
        purged = {each.key for each in sent if each.ending == "purged"}
        left, seen, found = deciding.forgotten(self.bench.reader, purged, seen, found)
        left += deciding.unarchived(scenario.runs, purged, events)
        again, found = deciding.replayed(self.bench.reader, self.place.consumer, scenario.runs, found)
        unsent = ["I5: outbox rows never left"] if self._unsent() else []
        return self.stuck + violations(seen, found) + wrong + left + again + unsent

    def _marked(self, found: Tables) -> Tables:
        """What the mark has passed counts as a ledger row, where it has none of its own."""
        table = "oncebox_watermark" if self.bench.url.startswith("sqlite") else "oncebox.watermark"
        rows = self.bench.reader.execute(
            f"SELECT last FROM {table} WHERE consumer = '{self.place.consumer}'"
        ).fetchall()
        known = {row.key for row in found.ledger}
        passed = {
            self._key_of(each.id) for each in self.deliveries.values() if rows and ord(each.id) <= rows[0][0]
        }
        return replace(found, ledger=[*found.ledger, *(Ledger(key) for key in sorted(passed - known))])

    def _key_of(self, message_id: str) -> Key:
        return (self.place.consumer, "s", message_id)

    def judge(self, what: str) -> None:
        """Fail the test with the story of this run."""
        found = self.violations()
        assert not found, f"{self.scenario.name}, {what}:\n" + "\n".join(found) + "\n" + self.story()

    def story(self) -> str:
        """What happened, event by event."""
        return "\n".join(json.dumps(event) for event in self._log())


def _arrives(scenario: Scenario) -> str:
    return "inline" if scenario.mode == "inline" else "receive"
