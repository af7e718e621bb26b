"""What stands still, brought about by an app at work: the doctor names it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg

from oncebox import App, Dead, Inbox, Message, Tx
from oncebox.errors import UnknownEffect
from oncebox.schema import migrate
from tests.cli.kit import Running
from tests.doctor.kit import ask, asked
from tests.operate.partitioned import Ledger
from tests.waiting import eventually_async


class Deaf:
    """A sink that takes what it is given."""

    name = "deaf"

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        return [None] * len(messages)


def execute(url: str, sql: str) -> None:
    """As an operator would, beside everything."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite, lite:
            lite.execute(sql.replace("oncebox.", "oncebox_"))
    else:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(sql.encode())


async def test_everything_that_waits_for_a_person(database_url: str) -> None:
    migrate(database_url)
    app = App(database_url, sink={"receipt.*": Deaf()})
    mailer = app.consumer("mailer", mode="stored")
    cases = app.consumer("cases", mode="stored", order_by="key", key="case")
    lines = app.consumer(
        "lines", mode="stored", order_by="sequence", key="case", sequence="version", sequence_start=1
    )
    billing = app.consumer("billing")

    @mailer.effect("mail")
    async def mail(body: dict[str, Any]) -> None:
        raise UnknownEffect("the provider did not answer")

    @cases.handler("case")
    async def case(body: dict[str, Any]) -> None:
        raise Dead("it can't be")

    @lines.handler("line")
    async def line(body: dict[str, Any]) -> None: ...

    @billing.handler("paid")
    async def paid(body: dict[str, Any], tx: Tx) -> None:
        tx.publish("invoice.sent", {})

    async with app.running():
        await mailer.process(Message(id="m-1", type="mail", payload={}))
        await cases.process(Message(id="c-1", type="case", payload={"case": "a"}))
        await lines.process(Message(id="l-2", type="line", payload={"case": "a", "version": 2}))
        for amount in (1, 2):
            await billing.process(Message(id="p-1", type="paid", payload={"amount": amount}))
        wanted = {
            "effects-unknown", "keys-blocked", "keys-gapped", "outbox-parked", "conflicts", "dead",
        }  # fmt: skip

        async def told() -> Any:
            return (await asked(database_url)).codes >= wanted

        await eventually_async(told, 30)
    await app.aclose()
    found = await asked(app)
    assert found.codes == {*wanted, "workers-none"}
    assert "1 unknown effect" in str([each.what for each in found if each.code == "dead"])


async def test_a_backlog_that_nobody_takes(database_url: str) -> None:
    migrate(database_url)
    app = App(database_url, sink=Deaf())
    later, billing = app.consumer("later", mode="stored"), app.consumer("billing")

    @later.handler("known")
    async def known(body: dict[str, Any]) -> None: ...

    @billing.handler("paid")
    async def paid(body: dict[str, Any], tx: Tx) -> None:
        tx.publish("receipt", {})

    await later.process(Message(id="l-1", type="from a newer producer", payload={}))
    await billing.process(Message(id="p-1", type="paid", payload={}))
    await app.aclose()
    found = await asked(app, patience_seconds=0.0)
    assert found.codes == {"backlog-old", "workers-none", "type-unhandled", "outbox-old"}
    assert "'from a newer producer'" in found.of("type-unhandled").what
    assert (await asked(app)).codes == {"workers-none", "type-unhandled"}, "it is patient"
    # Without the app nobody knows what is handled.
    assert "type-unhandled" not in (await asked(database_url)).codes


_SHOP = """\
import asyncio
from pathlib import Path

from oncebox import App

app = App({url!r}, lapse_seconds=120)
mailer = app.consumer("mailer", mode="stored", lease_seconds=1, timeout_seconds=100)


@mailer.effect("mail")
async def mail(body: dict) -> None:
    Path("begun").touch()
    await asyncio.Event().wait()
"""


async def test_what_a_killed_worker_leaves_behind(database_url: str, tmp_path: Path) -> None:
    migrate(database_url)
    (tmp_path / "shop.py").write_text(_SHOP.format(url=database_url))
    app = App(database_url, heartbeat_seconds=0.1, lapse_seconds=0.5)
    mailer = app.consumer("mailer", mode="stored")

    @mailer.effect("mail")
    async def mail(body: dict[str, Any]) -> None: ...

    await mailer.process(Message(id="m-1", type="mail", payload={}))
    await app.aclose()
    with Running("shop:app", cwd=tmp_path) as running:
        await eventually_async((tmp_path / "begun").exists, 30)
        running.process.kill()
        await running.ends()
    wanted = {"worker-lapsed", "lease-stuck", "effects-started"}

    async def told() -> Any:
        return (await asked(app, patience_seconds=0.0)).codes >= wanted

    await eventually_async(told, 30)


def test_a_ledger_that_nobody_walks(database_url: str) -> None:
    migrate(database_url)
    ago = (
        "(julianday('now') - 2440589.5) * 86400000000"
        if "sqlite" in database_url
        else "now() - interval '2 d'"
    )
    execute(database_url, f"UPDATE oncebox.sweep SET passed = {ago}")
    assert ask(database_url).codes == {"retention-behind"}


def test_a_ledger_in_partitions_that_nobody_makes(pg_url: str) -> None:
    ledger = Ledger(pg_url)
    ledger.split()
    assert "partitions-missing" not in ask(pg_url).codes
    ledger.rows(f"DROP TABLE oncebox.{ledger.leaf(-5)}")
    assert "partitions-missing" not in ask(pg_url).codes, "there is time"
    ledger.rows(f"DROP TABLE oncebox.{ledger.leaf(-1)}")
    ledger.own.close()
    assert ask(pg_url).codes == {"partitions-missing"}


def test_claims_that_were_committed_unfinished(database_url: str) -> None:
    migrate(database_url)
    for id_, consumer in (("a", "guarded"), ("b", "guarded"), ("c", "other")):
        place = database_url.removeprefix("sqlite:///")
        connect: Any = psycopg.connect if place == database_url else sqlite3.connect
        with closing(connect(place)) as handle:
            with suppress(ValueError), Inbox(consumer).once(handle, id_) as claim:
                assert claim.first
                raise ValueError("half the work")
            handle.commit()
    findings = ask(database_url)
    assert findings.codes == {"claims-unfinished"}
    assert {each.subject: each.what for each in findings} == {
        "consumer guarded": "2 committed although their block had failed",
        "consumer other": "1 committed although their block had failed",
    }


def test_the_loop_is_left_clean(database_url: str) -> None:
    """Nothing of a look is left open: neither a task nor a connection."""
    migrate(database_url)

    async def look() -> set[asyncio.Task[Any]]:
        await asked(database_url)
        return asyncio.all_tasks()

    assert len(asyncio.run(look())) == 1
