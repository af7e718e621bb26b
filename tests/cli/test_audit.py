"""`oncebox audit`: who did what to which message, when and why."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from oncebox import Backoff
from tests.cli.inside import Desk
from tests.core.kit import Call, Shop, event

ALICE = ("--by", "alice", "--reason", "provider was down")
BOB = ("--by", "bob", "--reason", "a \x1b[31mtest")


@pytest.fixture(params=["sqlite", "psycopg"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """Two messages redriven in one act, one discarded."""
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
    shop = Shop(request.param, url, "stored")
    billing = shop.consumer("billing", batch=10, retry=Backoff(attempts=1))

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise ValueError("no")

    async def deliver() -> None:
        for n in range(3):
            await shop.deliver(billing, event(f"evt-{n}", source="shop"))
        await shop.work_off(billing)

    asyncio.run(deliver())
    desk = Desk(shop)
    assert desk("dead", "redrive", "evt-0", "evt-1", *ALICE).code == 0
    assert desk("dead", "discard", "evt-2", *BOB).code == 0
    yield desk
    asyncio.run(shop.close())


def deeds(desk: Desk, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = desk("audit", *words, "--json").json()["deeds"]
    return found


def test_what_was_done_is_listed_the_latest_first(desk: Desk) -> None:
    found = deeds(desk)
    assert [(each["id"], each["verb"], each["who"], each["result"]) for each in found] == [
        ("evt-2", "dead discard", "bob", "discarded"),
        ("evt-1", "dead redrive", "alice", "waiting"),
        ("evt-0", "dead redrive", "alice", "waiting"),
    ]
    first = found[-1]
    assert (first["consumer"], first["source"], first["reason"]) == ("billing", "shop", "provider was down")
    assert first["filter"] == {"ids": ["evt-0", "evt-1"]}
    assert first["at"].endswith(("Z", "+00:00"))
    assert first["act"] == found[1]["act"] != found[0]["act"]


def test_options_narrow_it_down(desk: Desk) -> None:
    act = deeds(desk)[0]["act"]
    for words, wanted in (
        (("evt-1",), ["evt-1"]),
        (("--by", "bob"), ["evt-2"]),
        (("--verb", "dead"), ["evt-2", "evt-1", "evt-0"]),
        (("--verb", "dead redrive"), ["evt-1", "evt-0"]),
        (("--verb", "dea"), []),
        (("--act", act), ["evt-2"]),
        (("--consumer", "billing", "--source", "shop", "--limit", "1"), ["evt-2"]),
        (("--source", "elsewhere"), []),
        (("--newer", "1h"), ["evt-2", "evt-1", "evt-0"]),
        (("--older", "1h"), []),
    ):
        assert [each["id"] for each in deeds(desk, *words)] == wanted, words


def test_as_a_table(desk: Desk) -> None:
    shown = desk("audit", "--limit", "2")
    assert "provider was down" in shown.out
    assert "\x1b" not in shown.out
    assert "The latest 2; --limit shows more." in shown.out
    assert desk("audit", "nobody").out.strip() == "Nothing that was done by hand matches."


def test_show_tells_what_was_done_to_a_message(desk: Desk) -> None:
    shown = desk("show", "evt-0").out
    assert "dead redrive" in shown
    assert "alice" in shown
    assert "in line again" in shown
    assert "received" in shown
    [record] = json.loads(desk("show", "evt-0", "--json").out)["messages"]
    assert [deed["verb"] for deed in record["deeds"]] == ["dead redrive"]
    assert record["received"] < record["again"], "its place is new, its first arrival is not forgotten"
    [never] = json.loads(desk("show", "evt-2", "--json").out)["messages"]
    assert (never["state"], never["again"]) == ("discarded", None)
