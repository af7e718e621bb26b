"""What the soak is run on: a server, a broker, workers; and everything that happens to them."""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg

from oncebox import Message
from oncebox.brokers.memory import QueueStats
from oncebox.drivers.database import Database
from oncebox.runtime.schema import migrate
from proof.soak.places import Place
from proof.soak.worker import CONSUMERS, Spec
from tests.crash.checker import Key, Seen, Sent, Tables, violations
from tests.crash.effects import create_table, reader, tables
from tests.crash.harness import Broker
from tests.crash.nursery import Child, Nursery

WORKERS = 3
STOPPED_SECONDS = (0.5, 6.0)
"""For how long a worker stands still; the longest outlives its heartbeat."""


class Site:
    """A database, a broker in this process, and worker processes that are replaced when they die."""

    def __init__(self, folder: Path, nursery: Nursery, chance: random.Random, place: Place) -> None:
        self.folder = folder
        self.nursery = nursery
        self.chance = chance
        self.place = place
        self.url = place.url
        migrate(Database(self.url))
        create_table(self.url)
        self.broker = Broker(visibility_seconds=10.0)
        for name in CONSUMERS:
            self.broker.memory.queue(name, visibility_seconds=10.0)
        self.spec = Spec(self.url, self.broker.address, str(folder), place.full)
        self.workers: list[Child] = []
        self.stopped: dict[int, float] = {}
        """Workers that stand still, by pid, and until when."""
        self.relief: float | None = None
        """When what the database suffers ends."""
        self.lost: set[Key] = set()
        """What was acked and may be lost: a standby that did not hear of it took over."""
        self.counts: Counter[str] = Counter()
        self.sent: list[Sent] = []
        self._numbers = itertools.count(1)

    # Messages.

    def send(self, count: int) -> None:
        """Put so many messages; each tenth is there twice."""
        for number in itertools.islice(self._numbers, count):
            name = self.chance.choice(list(CONSUMERS))
            key: Key = (name, "s", f"m{number}")
            self.sent.append(Sent(key, b"{}", "done"))
            message = Message(id=key[2], source="s", type="t", payload=b"{}")
            self.broker.memory.put(name, message, duplicates=int(self.chance.random() < 0.1))

    def stats(self) -> list[QueueStats]:
        return [self.broker.memory.stats()[name] for name in CONSUMERS]

    @property
    def deliveries(self) -> int:
        return sum(stats.delivered for stats in self.stats())

    @property
    def backlog(self) -> int:
        return sum(stats.ready + stats.delayed + stats.in_flight for stats in self.stats())

    # What happens to it.

    def tend(self) -> None:
        """Replace who has died, wake who has stood still for long enough."""
        now = time.monotonic()
        if self.relief is not None and self.relief <= now:
            self.relief = None
            self.place.relieve()
        for child in self.workers:
            if self.stopped.get(child.pid, now + 1) <= now:
                child.kill(signal.SIGCONT)
                del self.stopped[child.pid]
        self.workers = [child for child in self.workers if child.status is None]
        while len(self.workers) < WORKERS:
            self.workers.append(
                self.nursery.fork("proof.soak.worker:main", spec=msgspec.to_builtins(self.spec))
            )

    def strike(self) -> None:
        """Something bad: mostly a kill, now and then a stop, or something that the database suffers."""
        odds = {"kill": 80, "stop": 15, **self.place.strikes}
        what = self.chance.choices(list(odds), list(odds.values()))[0]
        if what in self.place.strikes:
            self.suffer(what)
            return
        victim = self.chance.choice(self.workers)
        if what == "stop" and victim.pid not in self.stopped:
            victim.kill(signal.SIGSTOP)
            self.stopped[victim.pid] = time.monotonic() + self.chance.uniform(*STOPPED_SECONDS)
            self.counts["stops"] += 1
            return
        self.stopped.pop(victim.pid, None)
        victim.kill()
        victim.wait()
        self.counts["kills"] += 1

    def suffer(self, what: str) -> None:
        """The database's own share."""
        seconds = self.place.strike(what)
        if seconds:
            self.relief = time.monotonic() + seconds
        self.counts[what] += 1
        self.counts["kills"] += what == "database"

    def calm(self) -> None:
        """Nothing bad any more."""
        self.relief = None
        self.place.relieve()
        for child in self.workers:
            if self.stopped.pop(child.pid, None):
                child.kill(signal.SIGCONT)
        self.tend()

    def end(self) -> None:
        """End the workers in order."""
        for child in self.workers:
            child.kill(signal.SIGTERM)
        for child in self.workers:
            if child.wait(60) != 0:
                self.counts["bad ends"] += 1

    # What is seen.

    @property
    def _prefix(self) -> str:
        return "oncebox_" if self.url.startswith("sqlite") else "oncebox."

    def progress(self) -> tuple[int, int, int]:
        """Effects, messages in the queue, messages that the broker still owes."""
        try:
            ((effects, queued),) = self.place.ask(
                f"SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM {self._prefix}queue)"
            )
        except (psycopg.OperationalError, sqlite3.OperationalError):
            return (-1, -1, self.backlog)
        return (effects, queued, self.backlog)

    def state(self) -> str:
        """Where everything stands, for whoever has to find out why nothing moves."""
        for child in self.workers:
            child.kill(signal.SIGUSR1)
        time.sleep(1)
        p = self._prefix
        asked = {
            "queue": f"SELECT seq, consumer, message_id, attempts, deaths, token, due FROM {p}queue LIMIT 50",
            "workers": f"SELECT id, pid, heartbeat FROM {p}worker",
            "hands": f"SELECT worker, slot, consumer, seqs, message_id, at FROM {p}hand",
        }
        if not self.url.startswith("sqlite"):
            asked["now"] = "SELECT now()"
            asked["sessions"] = (
                "SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start, "
                "left(query, 200) FROM pg_stat_activity WHERE datname = current_database()"
            )
        lines = [f"broker: {self.broker.memory.stats()}"]
        for name, text in asked.items():
            try:
                rows = self.place.ask(text)
            except (psycopg.Error, sqlite3.Error) as error:
                lines += [f"-- {name}", repr(error)]  # the database is what everybody waits for
            else:
                lines += [f"-- {name}", *map(str, rows)]
        for child in self.workers:
            lines += [f"-- worker {child.pid}, status {child.status}", child.output[-4000:]]
        return "\n".join(lines)

    def violations(self) -> list[str]:
        """What the checker says about everything."""
        found: list[Tables] = []
        with closing(reader(self.url)) as connection:
            found = [tables(connection, name) for name in CONSUMERS]
        whole = Tables(
            effects=[key for each in found for key in each.effects],
            ledger=[row for each in found for row in each.ledger],
            queue=[row for each in found for row in each.queue],
            dead=[row for each in found for row in each.dead],
        )
        self.counts["doubled"] = sum(count > 1 for count in Counter(whole.effects).values())
        done = set(whole.effects)
        missing = {sent.key for sent in self.sent if sent.key not in done}
        self.counts["window"] = len(missing & self.lost)
        self.counts["lost"] = len(missing - self.lost)
        sent = [each for each in self.sent if each.key not in missing & self.lost]
        acked = [key for key in self._acked() if key not in missing & self.lost]
        return violations(Seen(sent=sent, acked=acked), whole)

    def _acked(self) -> list[Key]:
        return [
            (path.name.split(".")[0], "s", line)
            for path in self.folder.glob("*.acks")
            for line in path.read_text().splitlines()
        ]

    def close(self) -> None:
        for child in self.workers:
            if child.status is None:
                child.kill(signal.SIGCONT)
                child.kill()
        self.broker.close()
        self.place.close()
