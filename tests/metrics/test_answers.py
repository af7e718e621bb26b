"""What probes and scrapes are told, when all is well and when it is not."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from oncebox import App, Message, Retry
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteMemory
from oncebox.cli.run import _served
from oncebox.metrics import Operations, questions
from oncebox.metrics.families import Family, Sample, render
from oncebox.metrics.sharing import Shared
from oncebox.runtime.http import Asgi
from oncebox.runtime.meter import BUCKETS, Meter, Snapshot
from oncebox.schema import migrate
from tests.metrics.kit import Series, messages, parse
from tests.servers import Postgres, Proxy
from tests.waiting import eventually_async


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is there may take its time."""
    monkeypatch.setattr(questions, "ANSWER_SECONDS", 60.0)


@asynccontextmanager
async def client_of(app: Asgi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client:
        yield client


@asynccontextmanager
async def at_work(app: App, operations: Operations) -> AsyncIterator[httpx.AsyncClient]:
    """The app runs, and somebody asks it."""
    async with client_of(operations) as client, app.running() as running, operations.watching(running):
        yield client
        await app.aclose()


async def scrape(client: httpx.AsyncClient) -> Series:
    return parse((await client.get("/metrics")).text)


async def scrape_until(client: httpx.AsyncClient, *, database_up: float) -> None:
    async with asyncio.timeout(30):
        while (await scrape(client))["oncebox_database_up", ()] != database_up:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_ready_from_start_to_stop_and_alive_throughout(sqlite_url: str) -> None:
    app = App(sqlite_url)
    operations = Operations(app)
    async with client_of(operations) as client:
        early = await client.get("/readyz")
        assert (early.status_code, early.json()) == (503, {"ok": False, "why": "not started"})
        assert (await client.get("/healthz")).status_code == 200
        async with app.running() as running, operations.watching(running):
            assert (await client.get("/readyz")).json() == {"ok": True}
            assert (await client.get("/ops/readyz")).json() == {"ok": True}, "wherever it is mounted"
            assert (await client.get("/healthz")).json() == {"ok": True}
            assert (await client.post("/metrics")).status_code == 405
            assert (await client.get("/metric")).status_code == 404
        assert (await client.get("/readyz")).status_code == 503


async def test_a_process_without_its_heartbeat_is_not_healthy(sqlite_url: str) -> None:
    app = App(sqlite_url)
    operations = Operations(app)
    async with app.running() as running, operations.watching(running), client_of(operations) as client:
        running.keeper.stop()
        await eventually_async(lambda: not running.keeper.is_alive(), 30)
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["why"]) == (503, "the heartbeat has ended")


async def test_a_source_whose_broker_is_away_is_not_ready_until_it_is_back(
    sqlite_url: str, proxy_to: Callable[[int], Proxy]
) -> None:
    memory = Memory()
    memory.queue("payments")
    async with memory.serve() as address:
        found = re.fullmatch(r"(.*:)(\d+)(/\w+)", address)
        assert found is not None
        proxy = proxy_to(int(found[2]))
        proxy.cut(refuse=True)
        app = App(sqlite_url)
        source = RemoteMemory(f"{found[1]}{proxy.port}{found[3]}").queue("payments")
        app.consumer("billing", source, mode="inline").handler("payment")(_paid)
        operations = Operations(app)
        async with at_work(app, operations) as client:
            answer = await client.get("/readyz")
            assert (answer.status_code, "broker" in answer.json()["why"]) == (503, True)
            proxy.pass_through()
            async with asyncio.timeout(60):
                while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def test_a_schema_that_does_not_fit_is_not_ready(pg_url: str) -> None:
    migrate(pg_url)
    app = App(pg_url)
    operations = Operations(app)
    async with app.running() as running, operations.watching(running), client_of(operations) as client:
        assert (await client.get("/readyz")).status_code == 200
        with psycopg.connect(pg_url) as database:
            database.execute("INSERT INTO oncebox.version (version) VALUES (999)")
        answer = await client.get("/readyz")
        assert (answer.status_code, "oncebox migrate" in answer.json()["why"]) == (503, True)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
async def test_a_silent_database_costs_readiness_and_its_figures_but_not_the_counts(
    postgres: Postgres,
    pg_url: str,
    proxy_to: Callable[[int], Proxy],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "ANSWER_SECONDS", 1.0)
    migrate(pg_url)
    proxy = proxy_to(postgres.port)
    app = App(proxy.through(pg_url).replace("postgresql", scheme, 1))
    billing = app.consumer("billing")

    @billing.handler("payment")
    async def paid(payment: dict[str, int]) -> None: ...

    operations = Operations(app)
    async with at_work(app, operations) as client:
        await billing.process(Message(id="evt-1", type="payment", payload={}))
        await scrape_until(client, database_up=1)
        proxy.go_silent()
        try:
            began = time.monotonic()
            answers = await asyncio.gather(client.get("/readyz"), client.get("/healthz"))
            assert [answer.status_code for answer in answers] == [503, 200]
            await scrape_until(client, database_up=0)
            assert time.monotonic() - began < 40, "it answers within a bound"
            after = await scrape(client)
            assert messages(after) == {"processed": 1}
            assert ("oncebox_workers", ()) not in after
        finally:
            proxy.resume()
        await scrape_until(client, database_up=1)
        while (await client.get("/readyz")).status_code != 200:
            assert time.monotonic() - began < 100


async def test_handlers_are_timed_wherever_they_run(sqlite_url: str) -> None:
    memory = Memory()
    app = App(sqlite_url)
    received = app.consumer("received", memory.queue("payments"))
    called = app.consumer("called")
    tries: list[str] = []

    @received.handler("payment")
    async def fails_once(payment: dict[str, int], message: Message) -> None:
        tries.append(message.id)
        if len(tries) == 1:
            raise Retry(after=0.0)

    @called.handler("payment")
    async def paid(payment: dict[str, int]) -> None: ...

    operations = Operations(app)
    async with at_work(app, operations) as client:
        memory.put("payments", Message(id="evt-1", type="payment", payload={}))
        await called.process(Message(id="evt-1", type="payment", payload={}))
        await eventually_async(lambda: memory.stats()["payments"].acked == 1, 30)
        series = await scrape(client)
    took = {
        dict(labels)["consumer"]: n
        for (name, labels), n in series.items()
        if name == "oncebox_processing_seconds_count"
    }
    assert took == {"received": 2, "called": 1}, "a failed attempt took its time too"


async def test_nothing_is_timed_where_nobody_asks(sqlite_url: str) -> None:
    app = App(sqlite_url)
    app.consumer("billing").handler("payment")(_paid)
    async with app.running() as running:
        assert running.tallies.meter is None
        assert app.tallies.meter is None


async def _paid(payment: dict[str, int]) -> None: ...


async def test_a_page_that_the_app_serves_itself_stays_its_own(sqlite_url: str) -> None:
    async def own(scope: object, receive: object, send: Callable[..., object]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"own"})  # type: ignore[misc]

    app = App(sqlite_url)
    app.http.add("/metrics", own)
    async with client_of(_served(app, Operations(app))) as client:
        assert (await client.get("/metrics")).text == "own"
        assert (await client.get("/healthz")).json() == {"ok": True}
        assert (await client.get("/other")).status_code == 404


def test_labels_may_hold_anything() -> None:
    wild = 'a"b\\c\nd\ud800é'
    family = Family("oncebox_x", "gauge", "One\nline \\ of help.", [Sample({"consumer": wild}, 0.1 + 0.2)])
    ((key, value),) = parse(render([family]).decode()).items()
    assert (key, value) == (("oncebox_x", (("consumer", 'a"b\\c\nd?é'),)), 0.1 + 0.2)


def test_a_bucket_holds_what_takes_no_longer_than_its_bound() -> None:
    meter = Meter(lambda consumer: ["t"])
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, BUCKETS[-1], BUCKETS[-1] * 1.01):
        meter.time("c", "t", seconds)
    ((_, _, found),) = meter.snapshot().durations
    assert (found.counts[:2], found.counts[-2:], sum(found.counts)) == ([2, 1], [1, 1], 5)


def test_a_successor_goes_on_where_the_last_one_was_and_a_broken_file_costs_nobody_else(
    tmp_path: Path,
) -> None:
    def counted(n: int) -> Snapshot:
        return Snapshot(messages=[("c", "t", "processed", n)], purged={"c": n}, purge_failures=n)

    Shared(lambda: counted(2), tmp_path / "0.json").write()
    Shared(lambda: counted(30), tmp_path / "1.json").write()
    successor = Shared(lambda: counted(500), tmp_path / "0.json")
    assert successor.together() == counted(532)
    (tmp_path / "1.json").write_text("{")
    assert successor.together() == counted(502)
