"""`python -m proof.order`: order under load, with workers that are killed.

Messages are stored in a known order, some of them twice, while worker processes handle them; some fail
at first, and processes are killed and replaced. In the end every key's effects are there in exact order,
each once, and each found its predecessor's before itself. By sequence, what is stored is shuffled, some
comes late, and some keys miss a version for good: those stand before it, and are listed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from oncebox import Message
from oncebox.core.keys import LIST_MAX, stuck_keys
from oncebox.core.receiving import receive
from proof.order_worker import Spec, consumer
from tests.core.kit import Shop
from tests.crash.nursery import Child, Nursery
from tests.servers import Postgres

CHUNK = 500
DUPLICATES = 0.05
LATE = 0.02
VERSIONS = 50
MISSING = 5
"""Keys that miss a version for good."""
STALL_SECONDS = 180.0


class Load(msgspec.Struct):
    """What is stored, and what must come of it."""

    messages: list[Message]
    """In the order of their arrival, duplicates among them."""
    expected: dict[str, int]
    """How far each key must come."""
    missing: dict[str, str] = {}
    """The version that a key waits for, for good."""

    @property
    def total(self) -> int:
        return sum(self.expected.values())


class Figures(msgspec.Struct, kw_only=True):
    """What was seen."""

    messages: int
    keys: int
    hottest: int
    kills: int
    failed: int
    deaths: int
    seconds: float
    violations: list[str]


def message(key: str, version: int) -> Message:
    return Message(id=f"{key}-{version}", type="event", payload={"case": key, "version": version})


def by_key(messages: int, keys: int, skew: float, chance: random.Random) -> Load:
    """Keys drawn by Zipf's law; a key's versions count its messages as they arrive."""
    weights = [1 / rank**skew for rank in range(1, keys + 1)]
    counted: Counter[str] = Counter()
    made: list[Message] = []
    for drawn in chance.choices(range(keys), weights, k=messages):
        counted[f"k{drawn}"] += 1
        made.append(message(f"k{drawn}", counted[f"k{drawn}"]))
        if chance.random() < DUPLICATES:
            made.append(chance.choice(made[-1000:]))
    return Load(made, dict(counted))


def by_sequence(keys: int, versions: int, chance: random.Random) -> Load:
    """Every version of every key, shuffled, with duplicates; some come last of all, and a few never."""
    missing = {f"k{n}": chance.randint(2, versions - 1) for n in range(min(MISSING, keys - 1))}
    made = [
        message(f"k{key}", version)
        for key in range(keys)
        for version in range(1, versions + 1)
        if missing.get(f"k{key}") != version
    ]
    chance.shuffle(made)
    late = int(len(made) * LATE)
    again = chance.sample(made, int(len(made) * DUPLICATES))
    front = made[late:] + again
    chance.shuffle(front)
    expected = {f"k{n}": missing.get(f"k{n}", versions + 1) - 1 for n in range(keys)}
    return Load(front + made[:late], expected, {key: str(version) for key, version in missing.items()})


class Crew:
    """Worker processes; whoever is killed is replaced."""

    def __init__(self, nursery: Nursery, spec: Spec, processes: int, workers: int) -> None:
        self._nursery = nursery
        shares = [workers // processes + (n < workers % processes) for n in range(processes)]
        self._specs = [msgspec.structs.replace(spec, workers=share) for share in shares]
        self.children = [self._start(spec) for spec in self._specs]
        self.kills = 0

    def _start(self, spec: Spec) -> Child:
        return self._nursery.fork("proof.order_worker:main", spec=msgspec.to_builtins(spec))

    def kill(self, seat: int) -> None:
        """Kill -9 whoever sits there, and have another."""
        assert self.children[seat].status is None, self.children[seat].output[-2000:]
        self.children[seat].kill()
        self.children[seat].wait(60)
        self.kills += 1
        self.children[seat] = self._start(self._specs[seat])


async def store(shop: Shop, cases: Any, load: Load) -> None:
    """Store everything in its order, a few hundred in one transaction."""
    for chunk in _chunks(load):
        items = [cases.intake.from_message(each) for each in chunk]
        while items:
            left = await shop.perform(cases, lambda work, items=items: receive(work, items))  # type: ignore[misc]
            items = [item for item in items if item in left]


def _chunks(load: Load) -> Iterator[list[Message]]:
    for start in range(0, len(load.messages), CHUNK):
        yield load.messages[start : start + CHUNK]


async def drive(shop: Shop, crew: Crew, load: Load, kills: int, chance: random.Random) -> None:
    """Wait until all is done, killing on the way; gives up when nothing moves."""
    marks = [load.total * (n + 1) // (kills + 1) for n in range(kills)]
    done, moved = 0, time.monotonic()
    while done < load.total:
        await asyncio.sleep(0.1)
        now = await asyncio.to_thread(lambda: int(shop.rows("SELECT count(*) FROM proof_line")[0][0]))
        if now != done:
            done, moved = now, time.monotonic()
        elif time.monotonic() - moved > STALL_SECONDS:
            return
        if marks and done >= marks[0]:
            marks.pop(0)
            await asyncio.to_thread(crew.kill, chance.randrange(len(crew.children)))


def judge(shop: Shop, load: Load) -> list[str]:
    """What is not as it must be; empty when every key's effects are in exact order, each once."""
    wrong: list[str] = []
    came: dict[str, list[int]] = {key: [] for key in load.expected}
    for key, version, found in shop.rows("SELECT key, version, found FROM proof_line ORDER BY n"):
        came.setdefault(key, []).append(version)
        if found != version - 1:
            wrong.append(f"{key}: version {version} ran after version {found}")
    for key, versions in came.items():
        if versions != list(range(1, load.expected.get(key, 0) + 1)):
            wrong.append(
                f"{key}: {len(versions)} effects of {load.expected.get(key, 0)}, last {versions[-3:]}"
            )
    return wrong


async def listed(shop: Shop, cases: Any, load: Load) -> list[str]:
    """Whether exactly the keys that miss a version are said to."""
    assert len(load.missing) < LIST_MAX
    found = await shop.perform(cases, lambda work: stuck_keys(work.queries))
    said = {each.key: each.missing for each in found}
    return [] if said == load.missing else [f"keys list says {said}, and what is missing is {load.missing}"]


async def prove(
    url: str, load: Load, spec: Spec, *, processes: int, kills: int, chance: random.Random, nursery: Nursery
) -> Figures:
    """One run on one database."""
    shop = Shop("sqlite" if url.startswith("sqlite") else "psycopg", url, "stored")
    try:
        number = (
            "INTEGER PRIMARY KEY AUTOINCREMENT"
            if shop.kind.engine == "sqlite"
            else "bigint GENERATED ALWAYS AS IDENTITY"
        )
        shop.rows(f"CREATE TABLE proof_line (n {number}, key TEXT, version INTEGER, found INTEGER)")
        shop.rows("CREATE INDEX proof_line_key ON proof_line (key, version)")
        cases = consumer(shop.app, spec.by)
        began = time.monotonic()
        crew = Crew(nursery, spec, processes, spec.workers)
        await asyncio.gather(store(shop, cases, load), drive(shop, crew, load, kills, chance))
        seconds = time.monotonic() - began
        wrong = judge(shop, load) + await listed(shop, cases, load)
        if crew.kills < kills:
            wrong.append(f"{crew.kills} kills of {kills}: it was over too soon")
        attempts = f"SELECT count(*) FROM {shop.table('attempt')} WHERE "
        died = "died" if shop.kind.engine == "postgresql" else "died = 1"
        for child in crew.children:
            child.kill()
        return Figures(
            messages=load.total, keys=len(load.expected), hottest=max(load.expected.values()), kills=crew.kills,
            failed=int(shop.rows(attempts + f"NOT ({died})")[0][0]), deaths=int(shop.rows(attempts + died)[0][0]),
            seconds=round(seconds, 1), violations=wrong,
        )  # fmt: skip
    finally:
        await shop.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.order", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--skew", type=float, default=1.0, help="the exponent of Zipf's law")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8, help="in all processes together")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--failing", type=float, default=0.05, help="the share that fails once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--sqlite", action="store_true", help="a tenth of the messages, on SQLite")
    parser.add_argument(
        "--sequence", action="store_true", help=f"a tenth of the keys, {VERSIONS} versions each"
    )
    told = parser.parse_args()
    chance = random.Random(told.seed)
    if told.sequence:
        load = by_sequence(told.keys // 10, VERSIONS, chance)
    else:
        load = by_key(told.messages // (10 if told.sqlite else 1), told.keys, told.skew, chance)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncebox-order-")))
        nursery = stack.enter_context(Nursery(folder))
        server = None if told.sqlite else stack.enter_context(Postgres())
        url = f"sqlite:///{folder / 'order.db'}" if server is None else server.create_database()
        by = "sequence" if told.sequence else "key"
        spec = Spec(url=url, by=by, workers=told.workers, batch=told.batch, failing=told.failing)
        print(f"order by {by}: {load.total} messages, --seed {told.seed}", flush=True)
        figures = asyncio.run(
            prove(url, load, spec, processes=told.processes, kills=told.kills, chance=chance, nursery=nursery)
        )
    print(msgspec.json.format(msgspec.json.encode(figures)).decode())
    return int(bool(figures.violations))


if __name__ == "__main__":
    sys.exit(main())
