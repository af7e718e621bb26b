"""What people read at three in the morning: lanes and blocking heads, guards that count, types nobody takes."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncebox import App, Dead, Inbox, Message, Status
from oncebox.cli.text import many
from oncebox.codec import safe_text
from oncebox.errors import HandlerTimeout, PayloadConflict
from oncebox.schema import migrate
from tests.cli.inside import Desk, inside
from tests.core.kit import Call, Shop, event
from tests.order.lines import BY_KEY, BY_SEQUENCE, case, note

KINDS = pytest.mark.parametrize("engine", ["sqlite", "psycopg"])


def shop_on(engine: str, request: pytest.FixtureRequest, mode: str = "stored") -> Shop:
    return Shop(engine, request.getfixturevalue("sqlite_url" if engine == "sqlite" else "pg_url"), mode)


@KINDS
def test_show_names_the_key_and_what_blocks_it(engine: str, request: pytest.FixtureRequest) -> None:
    shop = shop_on(engine, request)
    number = "INTEGER PRIMARY KEY" if engine == "sqlite" else "bigint GENERATED ALWAYS AS IDENTITY"
    shop.rows(f"CREATE TABLE shop_line (n {number}, key TEXT NOT NULL, version INTEGER NOT NULL)")
    orders, lines = shop.consumer("orders", **BY_KEY), shop.consumer("lines", **BY_SEQUENCE)
    shop.handler(lines)(note)

    @shop.handler(orders)
    async def refuses(call: Call) -> None:
        raise Dead("no")

    async def deliver() -> None:
        for message in (case("a", 1), case("a", 2), case("a", 3)):
            await shop.deliver(orders, message)
        await shop.deliver(lines, case("b", 3, id="late"))
        for n in (1, 2):
            await shop.deliver(lines, case("c", n, id=f"turn-{n}"))
        await shop.work_off(orders)

    asyncio.run(deliver())
    desk = Desk(shop)
    assert "blocks its key since" in desk("show", "a-1").out
    waits = desk("show", "a-3").out
    assert "its key is blocked by dead message a-1 since" in waits
    [record] = json.loads(desk("show", "a-3", "--json").out)["messages"]
    lane = record["lane"]
    assert (lane["key"], lane["blocked_by"], lane["before"]) == ("a", "a-1", 1)
    assert "b, version 3" in desk("show", "late").out
    assert "has its key's turn" in desk("show", "turn-1").out
    assert "1 message of its key before it; turn-1 has the turn" in desk("show", "turn-2").out
    asyncio.run(shop.close())


def test_status_counts_what_the_guard_handled(database_url: str) -> None:
    migrate(database_url)
    inbox = Inbox("guarded")
    messages = [Message(id=f"evt-{n}") for n in range(3)]
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as lite, lite:
            claims = inbox.claim_many(lite, messages)
    else:
        with psycopg.connect(database_url) as session:
            claims = inbox.claim_many(session, messages)
    assert all(claim.first for claim in claims)
    [seen] = json.loads(inside("status", "--database", database_url, "--json").out)["consumers"]
    assert (seen["consumer"], seen["known"], seen["processed"]) == ("guarded", 3, 0)


def test_status_names_types_that_nobody_takes(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(database_url)
    (tmp_path / "words_shop.py").write_text(
        f"from oncebox import App\napp = App({database_url!r})\nlater = app.consumer('later', mode='stored')\n"
        "@later.handler('known')\nasync def known(body: dict) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    async def store() -> None:
        app = App(database_url)
        later = app.consumer("later", mode="stored")
        for name, kind in (("a", "known"), ("b", "strange"), ("c", "strange")):
            await later.process(Message(id=name, type=kind, payload={}))
        await app.aclose()

    asyncio.run(store())
    sys.modules.pop("words_shop", None)
    said = inside("status", "--app", "words_shop:app")
    assert "later: 2 messages of type 'strange' in the queue, and no handler takes it" in said.out
    [seen] = json.loads(inside("status", "--app", "words_shop:app", "--json").out)["consumers"]
    assert seen["unhandled"] == {"strange": 2}
    assert "strange" not in inside("status", "--database", database_url).out


def test_a_conflict_says_whether_only_the_payload_differs(sqlite_url: str) -> None:
    shop = Shop("sqlite", sqlite_url, "inline")
    billing = shop.consumer()

    @shop.handler(billing)
    async def fine(call: Call) -> None: ...

    async def deliver() -> list[str]:
        await shop.deliver(billing, event())
        clashes = [event(payload={"n": 2}), event(type="refunded")]
        return [str((await shop.deliver(billing, clash)).error) for clash in clashes]

    payload, kind = asyncio.run(deliver())
    asyncio.run(shop.close())
    assert payload == "consumer 'billing': id 'evt-1' is known with another payload; the type is the same"
    assert "known type 'paid', this one 'refunded'" in kind


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Secretive(Exception):
    """Quotes what it should not."""


@pytest.mark.parametrize(
    ("error", "said", "unsaid"),
    [
        (Secretive("amount canary"), "Secretive at test_words.py:", "canary"),
        (Dead("canary"), "Dead at test_words.py:", "canary"),
        (HandlerTimeout("it took 31 s"), ": it took 31 s", "canary"),
        (PayloadConflict("x" * 1000), "PayloadConflict", "x" * 400),
        (psycopg.errors.UniqueViolation("Key (id)=(canary)"), "UniqueViolation at test_words.py:", "canary"),
    ],
)
def test_logs_say_what_can_not_quote_a_payload(error: BaseException, said: str, unsaid: str) -> None:
    text = safe_text(_raised(error))
    assert said in text
    assert unsaid not in text
    assert "\n" not in text


def test_one_and_many() -> None:
    assert [many(n, "key") for n in (0, 1, 2, 1200)] == ["0 keys", "1 key", "2 keys", "1,200 keys"]


@KINDS
def test_what_the_guard_left_unfinished_is_not_a_conflict(
    engine: str, request: pytest.FixtureRequest
) -> None:
    """The guard may have claimed it without a payload: there is nothing that it could clash with."""
    shop = shop_on(engine, request, "inline")
    billing, calls = shop.consumer(), []

    @shop.handler(billing)
    async def fine(call: Call) -> None:
        calls.append(call.payload)

    def claim(handle: Any) -> None:
        try:
            with Inbox("billing").once(handle, "evt-1", type="paid") as claimed:
                assert claimed.first
                raise ValueError("caught outside, and committed all the same")
        except ValueError:
            handle.commit()

    if engine == "sqlite":
        with closing(sqlite3.connect(shop._url.removeprefix("sqlite:///"))) as lite:
            claim(lite)
    else:
        with psycopg.connect(shop._url) as session:
            claim(session)
    desk = Desk(shop)

    async def deliver(payload: Any) -> Any:
        return await shop.deliver(billing, event(payload=payload))

    for n in (1, 2):
        outcome = asyncio.run(deliver({"n": n}))
        assert (outcome.status, outcome.reason) == (Status.DEAD, "unfinished")
    found = desk("dead", "list", "--json").json()["dead"]
    assert sorted(each["is_conflict"] for each in found) == [False, True], "one of the two is the message"
    assert desk("dead", "redrive", "evt-1", "--reason", "nothing was written").code == 0
    desk.work_off(billing)
    assert len(calls) == 1
    [left] = desk("dead", "list", "--json").json()["dead"]
    assert left["is_conflict"], "the other one clashes with what is done now"
    assert desk("dead", "redrive", "--all", "--apply", "--reason", "again").code == 0
    desk.work_off(billing)
    assert len(calls) == 1
    asyncio.run(shop.close())
