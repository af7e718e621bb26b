"""Random schedules of whatever may happen to a key, beside a dictionary that knows what must come of it."""

import asyncio
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncebox import Backoff, Consumer, Dead
from oncebox.core import lanes
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, decide
from oncebox.core.keys import close_gaps, reset, skip_gap, unblock
from oncebox.core.leased import take_leased
from oncebox.core.reap import reap_lapsed
from oncebox.core.steps import Op
from oncebox.core.stored import work_batch
from oncebox.core.work import Item, Work
from oncebox.errors import DatabaseUnavailable, UsageError
from tests.core.deaths import beating, killed_at_handle
from tests.core.kit import Call, Shop, event
from tests.order.lines import AT_ONCE_SECONDS, BY_KEY, BY_SEQUENCE
from tests.order.model import Lane, Refused
from tests.waiting import eventually_async

EXAMPLES = 400 if os.environ.get("ONCEBOX_SOAK") == "1" else 20
ACT = Act(verb="test", who="me", reason="to see")
GAPS = ("park", "skip", "proceed")
LEASE_SECONDS = 0.001

VERSIONS = st.integers(1, 5)
STEP = st.one_of(
    st.tuples(st.just("deliver"), VERSIONS, st.integers(0, 1)),
    st.tuples(st.just("deliver"), VERSIONS, st.just(0)),
    st.tuples(st.just("work"), st.sampled_from(["ok", "ok", "ok", "fail", "die"])),
    st.tuples(st.sampled_from(["crash", "expire", "unblock", "skip", "close gaps"])),
    st.tuples(st.sampled_from(["redrive", "discard"]), st.integers(0, 9)),
    st.tuples(st.just("reset"), st.none() | st.integers(0, 5)),
)


async def until(probe: Callable[[], Any]) -> Any:
    """What the probe finds, once it finds something."""
    return await eventually_async(probe, 20)


class Site:
    """A shop with one consumer per way to deal with gaps; each schedule has a key of its own."""

    def __init__(self, shop: Shop, by: str) -> None:
        self.shop, self.by = shop, by
        self.behaviour = "ok"
        self.slots, self.names = itertools.count(10), itertools.count(1)
        self.queries = shop.app.database.queries
        number = (
            "INTEGER PRIMARY KEY" if shop.kind.engine == "sqlite" else "bigint GENERATED ALWAYS AS IDENTITY"
        )
        shop.rows(f"CREATE TABLE model_line (n {number}, name TEXT)")
        self.consumers = {on_gap: self._consumer(on_gap) for on_gap in GAPS}

    def _consumer(self, on_gap: str) -> Consumer:
        order = (
            BY_KEY if self.by == "key" else {**BY_SEQUENCE, "on_gap": on_gap, "gap_seconds": AT_ONCE_SECONDS}
        )
        consumer = self.shop.consumer(
            on_gap, crash_limit=10_000, lease_seconds=LEASE_SECONDS, retry=Backoff(10_000, 0.0), **order
        )
        self.shop.handler(consumer, "short")(self._handle)
        self.shop.handler(consumer, "long", long=True)(self._handle)
        return consumer

    async def _handle(self, call: Call) -> None:
        await call.db.run("INSERT INTO model_line (name) VALUES (?)", call.message.id)
        if self.behaviour != "ok":
            raise (Dead if self.behaviour == "die" else RuntimeError)("as told")


class Schedule:
    """One schedule on one key."""

    def __init__(self, site: Site, on_gap: str) -> None:
        self.site, self.shop = site, site.shop
        self.key = f"k{next(site.names)}"
        self.consumer = site.consumers[on_gap]
        self.model = Lane(site.by, on_gap)

    async def play(self, steps: list[tuple[Any, ...]]) -> None:
        for step in steps:
            await self._do(*step)
            self._compare(step)
        while self.model.turn is not None:
            await self._work("ok")
        self._compare(("the end",))

    async def _do(self, what: str, *told: Any) -> None:
        match what:
            case "deliver":
                await self._deliver(*told)
            case "work":
                await self._work(*told)
            case "crash" | "expire":
                await (self._crash() if what == "crash" else self._expire())
            case "redrive" | "discard":
                await self._decide(what, *told)
            case "close gaps":
                await self._close_gaps()
            case _:
                flows: dict[str, Callable[..., Op[None]]] = {
                    "unblock": unblock,
                    "skip": skip_gap,
                    "reset": reset,
                }
                await self._change(flows[what], getattr(self.model, what), *told)

    async def _close_gaps(self) -> None:
        before = (self.model.last, len(self.model.dead))
        self.model.close_gap()
        if before == (self.model.last, len(self.model.dead)):
            assert await self._ask(close_gaps) == []
        else:
            # By the database's clock, which may stand still for a millisecond.
            assert len(await until(lambda: self._ask(close_gaps))) == 1

    async def _deliver(self, version: int, variant: int) -> None:
        """Another message, or the same again: there are ten of them, and two of each version."""
        name = f"{self.key}-{version}-{variant}"
        kind = "long" if version % 2 else "short"
        payload = {"case": self.key, "version": version}
        await self.shop.deliver(self.consumer, event(name, type=kind, payload=payload))
        self.model.deliver(name, version)

    async def _work(self, behaviour: str) -> None:
        self.site.behaviour = behaviour
        turn = self.model.turn
        if turn is None:
            assert await self._turns() == []
            return
        (item,) = await until(self._turns)
        assert item.message.id == turn, "somebody ran out of turn"
        if behaviour != "fail":
            (self.model.applies if behaviour == "ok" else self.model.dies)(turn)

    async def _turns(self) -> list[Item]:
        """Whatever a worker's turn comes to, as one of a batch, as a suspect or as a long one."""
        settled = await self.shop.work(self.consumer)
        settled = settled or await self.shop.work(self.consumer, suspect=True)
        return settled or await self.shop.work(self.consumer, long=True)

    async def _crash(self) -> None:
        """A worker dies with the message in hand, and its death is noticed. A long one has a lease instead."""
        if self.model.turn is None or self._is_long:
            return
        suspects = f"SELECT 1 FROM {self.shop.table('queue')} WHERE message_id = ? AND deaths > 0"
        suspect = bool(self.shop.rows(suspects, self.model.turn))
        slot = next(self.site.slots)
        await self.shop.perform(self.consumer, beating, slot=slot)

        async def died() -> bool:
            flow = partial(work_batch, suspect=suspect)
            try:
                await self.shop.perform(self.consumer, flow, slot=slot, through=killed_at_handle)
            except DatabaseUnavailable:
                return True
            return False

        await until(died)

        async def reaped() -> bool:
            await self._ask(lambda work: reap_lapsed(work, 0.0))
            return not self.shop.rows(f"SELECT 1 FROM {self.shop.table('worker')}")

        await until(reaped)

    async def _expire(self) -> None:
        """A worker leases a long message and is never heard of again."""
        if self.model.turn is None or not self._is_long:
            return
        slot = next(self.site.slots)

        async def leased() -> Item | None:
            return await self.shop.perform(
                self.consumer, lambda work: take_leased(work, work.long_types), slot=slot
            )

        item = await until(leased)
        assert item is not None
        assert item.message.id == self.model.turn, "somebody ran out of turn"

    @property
    def _is_long(self) -> bool:
        assert self.model.turn is not None
        return self.model.places[self.model.turn].version % 2 == 1

    async def _decide(self, decision: Any, at: int) -> None:
        dead = sorted(self.model.dead)
        if dead:
            name = dead[at % len(dead)]
            flow = decide(self.site.queries, decision, Choice(ids=(name,)), ACT)
            assert len(await self._ask(lambda work: flow)) == 1
            getattr(self.model, decision)(name)

    async def _change(self, flow: Callable[..., Op[None]], expect: Callable[..., None], *told: Any) -> None:
        op = flow(self.site.queries, self.consumer.name, self.key, *told, ACT)
        refused = False
        try:
            expect(*told)
        except Refused:
            refused = True
        if refused:
            with pytest.raises(UsageError):
                await self._ask(lambda work: op)
        else:
            await self._ask(lambda work: op)

    async def _ask(self, flow: Callable[[Work], Op[Any]]) -> Any:
        return await self.shop.perform(self.consumer, flow)

    def _compare(self, step: tuple[Any, ...]) -> None:
        """The tables and the model, word by word."""
        shop, model, at = self.shop, self.model, (self.consumer.name, self.key)
        lines = shop.rows("SELECT name FROM model_line WHERE name LIKE ? ORDER BY n", f"{self.key}-%")
        assert [name for (name,) in lines] == model.applied, step
        assert len(set(model.applied)) == len(model.applied), step
        queue = f"SELECT message_id, turn FROM {shop.table('queue')} WHERE consumer = ? AND lane = ?"
        found = {name: bool(turn) for name, turn in shop.rows(queue, *at)}
        assert found == {name: name == model.turn for name in model.queue}, step
        dead = f"SELECT message_id FROM {shop.table('dead')} WHERE consumer = ? AND lane = ?"
        assert {name for (name,) in shop.rows(dead, *at)} == model.dead, step
        key = (
            f"SELECT message_id, blocked IS NOT NULL, gap IS NOT NULL, last FROM {shop.table('key')} "
            "WHERE consumer = ? AND key = ?"
        )
        for head, blocked, gap, last in shop.rows(key, *at):
            assert (head, bool(blocked), bool(gap)) == (
                model.blocked, model.blocked is not None, model.is_gap
            ), step  # fmt: skip
            assert last == model.last or not model.by_sequence, step


@pytest.mark.parametrize("by", ["key", "sequence"])
def test_a_key_does_what_the_model_says(database_url: str, by: str) -> None:
    shop = Shop("sqlite" if database_url.startswith("sqlite") else "psycopg", database_url, "stored")
    site = Site(shop, by)
    with asyncio.Runner() as runner:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(
            st.sampled_from(GAPS if by == "sequence" else GAPS[:1]), st.lists(STEP, min_size=5, max_size=25)
        )
        def schedules(on_gap: str, steps: list[tuple[Any, ...]]) -> None:
            played = Schedule(site, on_gap)
            try:
                runner.run(played.play(steps))
            finally:
                # What a failed schedule leaves must not be taken by the next.
                with suppress(Exception):
                    shop.rows(f"DELETE FROM {shop.table('queue')}")

        try:
            schedules()
        finally:
            runner.run(shop.close())


def test_the_model_notices_a_dead_head_that_does_not_block(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop("sqlite", sqlite_url, "stored")
    site = Site(shop, "key")
    steps = [("deliver", 2, 0), ("deliver", 4, 0), ("work", "die")]
    with asyncio.Runner() as runner:
        runner.run(Schedule(site, "park").play(steps))
        monkeypatch.setattr(lanes, "block", lambda work, item: lanes.lock(work.queries, work.consumer, []))
        with pytest.raises(AssertionError, match="die"):
            runner.run(Schedule(site, "park").play(steps))
        runner.run(shop.close())
