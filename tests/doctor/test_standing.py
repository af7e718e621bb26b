"""What stands still, brought about by an app at work: the doctor names it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncebox import App, Dead, Inbox, Message, Tx
from oncebox.errors import UnknownEffect
from oncebox.schema import migrate
from tests.cli.kit import Running, oncebox
from tests.doctor.kit import ask, asked, faketime
from tests.operate.partitioned import Ledger
from tests.servers import Postgres
from tests.waiting import eventually_async


class Deaf:
    """A sink that takes what it is given."""

    name = "deaf"

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        return [None] * len(messages)


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


def walked(url: str, folder: Path, env: dict[str, str] | None = None) -> None:
    """As `oncebox run` does now and then, to the end."""
    code = f"from oncebox import App\napp = App({url!r})\napp.consumer('billing', retention=10 * 86_400.0)\n"
    (folder / "shop.py").write_text(code)
    done = oncebox("purge", "--app", "shop:app", cwd=folder, env={**os.environ, **(env or {})})
    assert done.code == 0, done.err


def test_a_ledger_that_nobody_walks(sqlite_url: str, tmp_path: Path) -> None:
    migrate(sqlite_url)
    walked(sqlite_url, tmp_path, faketime("-2d"))
    assert "48 h ago" in ask(sqlite_url).of("retention-behind").what
    walked(sqlite_url, tmp_path, faketime("-12h"))
    assert ask(sqlite_url).codes == set(), "half a day is nobody's trouble"


def test_a_ledger_that_nobody_has_looked_after_for_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a week and two days without `oncebox run` do to a ledger in partitions."""
    server = Postgres()
    try:
        with monkeypatch.context() as patch:
            for name, value in faketime("-9d").items():
                patch.setenv(name, value)
            server.start()
        url = server.create_database()
        migrate(url)
        ledger = Ledger(url)
        ledger.split()
        ledger.own.close()
        walked(url, tmp_path)
        assert ask(url).codes == {"clock-skew"}
        server.stop()
        server.start()
        found = ask(url)
        assert found.codes == {"retention-behind", "partitions-missing"}
        assert "216 h ago" in found.of("retention-behind").what
        walked(url, tmp_path)
        assert ask(url).codes == set()
    finally:
        server.close()


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
