"""`oncebox keys`: what stands still is listed with its reason, and goes on when a person says so."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncebox import Consumer, Dead
from tests.cli.inside import Desk
from tests.cli.kit import oncebox
from tests.core.kit import Call, Shop, event
from tests.order.lines import BY_KEY, BY_SEQUENCE, applied, case, note

HOSTILE = "o\x1b[31m\u202e-9"
WHY = ("--reason", "seen to")


class Site(NamedTuple):
    """A desk, and the consumers whose keys stand still."""

    desk: Desk
    orders: Consumer
    cases: Consumer


def fill(shop: Shop) -> Site:
    """Blocked keys of `orders` and gapped ones of `cases`."""
    number = "INTEGER PRIMARY KEY" if shop.kind.engine == "sqlite" else "bigint GENERATED ALWAYS AS IDENTITY"
    shop.rows(f"CREATE TABLE shop_line (n {number}, key TEXT NOT NULL, version INTEGER NOT NULL)")
    orders = shop.consumer("orders", batch=10, **BY_KEY)
    cases = shop.consumer("cases", batch=10, **BY_SEQUENCE)
    shop.handler(cases)(note)

    @shop.handler(orders)
    async def refuses_firsts(call: Call) -> None:
        if call.payload["version"] == 1:
            raise Dead("no")
        await note(call)

    async def deliver() -> None:
        for n in (1, 2, 3):
            await shop.deliver(orders, case("a", n))
        await shop.deliver(orders, event("hostile", payload={"case": HOSTILE, "version": 1}))
        for key, version in (("x", 1), ("x", 4), ("x", 5), ("y", 2), ("z", 1)):
            await shop.deliver(cases, case(key, version))
        for consumer in (orders, cases):
            await shop.work_off(consumer)

    asyncio.run(deliver())
    return Site(Desk(shop), orders, cases)


@pytest.fixture
def site(sqlite_url: str) -> Iterator[Site]:
    shop = Shop("sqlite", sqlite_url, "stored")
    yield fill(shop)
    asyncio.run(shop.close())


def test_keys_are_listed_with_why_how_long_and_what_they_wait_for(site: Site) -> None:
    found = site.desk("keys", "list", "--json").json()["keys"]
    said = {
        each["key"]: (each["consumer"], each["why"], each["waiting"], each["head"], each["missing"])
        for each in found
    }
    assert said == {
        "a": ("orders", "blocked", 2, "a-1", ""),
        HOSTILE: ("orders", "blocked", 0, "hostile", ""),
        "x": ("cases", "gap", 2, "", "2-3"),
        "y": ("cases", "gap", 1, "", "1"),
    }
    assert {each["key"]: each["last"] for each in found if each["why"] == "gap"} == {"x": 1, "y": 0}
    ages = [each["age_seconds"] for each in found]
    assert ages == sorted(ages, reverse=True), "the longest first"
    assert min(ages) >= 0
    table = site.desk("keys", "list")
    assert table.code == 0
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in table.out.splitlines() if "│" in line
    ]
    shown = {row[1]: (row[0], row[2], row[4], row[5]) for row in rows}
    assert shown["a"] == ("orders", "blocked", "2", "a-1")
    assert shown["x"] == ("cases", "gap", "2", "2-3")
    assert not set("\x1b\u202e") & set(table.out)


def test_lists_are_narrowed_by_consumer_and_key(site: Site) -> None:
    assert [each["key"] for each in site.desk("keys", "list", "--key", "x", "--json").json()["keys"]] == ["x"]
    only = site.desk("keys", "list", "-c", "cases", "--json").json()["keys"]
    assert {each["key"] for each in only} == {"x", "y"}
    nothing = site.desk("keys", "list", "--consumer", "cases", "--key", "a")
    assert (nothing.code, nothing.out) == (0, "No key stands still.\n")
    assert site.desk("keys", "list", "--key", "z", "--json").json() == {"keys": []}


def test_an_unblocked_key_goes_on_without_its_head(site: Site) -> None:
    done = site.desk("keys", "unblock", "a", "-c", "orders", *WHY, "--by", "ann")
    assert (done.code, done.out) == (0, "orders: a goes on without its dead head\n"), done.err
    site.desk.work_off(site.orders)
    assert applied(site.desk.shop, "a") == [2, 3]
    assert site.desk.audit() == [("keys unblock", "ann", "seen to", "orders", "", "a", "unblocked")]
    assert site.desk.shop.count("dead") == 2, "the head stays among the dead"


def test_a_skipped_gap_is_closed_and_what_was_missing_is_stale(site: Site) -> None:
    done = site.desk("keys", "skip", "x", "-c", "cases", *WHY, "--json").json()
    ((act, chosen, by),) = site.desk.audit("act, filter, who")
    assert done == {"act": act, "consumer": "cases", "key": "x", "done": "goes on without what was missing"}
    assert json.loads(chosen) == {"consumer": "cases", "key": "x"}
    assert "@" in by, "who it was is known without --by"
    site.desk.work_off(site.cases)
    assert applied(site.desk.shop, "x") == [1, 4, 5]
    assert asyncio.run(site.desk.shop.deliver(site.cases, case("x", 2))).status == "stale"


def test_a_reset_key_goes_on_after_the_version_that_was_named(site: Site) -> None:
    done = site.desk("keys", "reset", "x", "-c", "cases", "--last", "4", *WHY)
    assert (done.code, done.out) == (0, "cases: x goes on after version 4\n"), done.err
    site.desk.work_off(site.cases)
    assert applied(site.desk.shop, "x") == [1, 5]
    assert site.desk.audit("verb, message_id, result") == [("keys reset", "x", "last version 4")]


@pytest.mark.parametrize(("key", "came"), [("y", [2]), ("z", [1, 1])], ids=["waiting", "none waits"])
def test_a_key_that_is_to_learn_starts_with_what_waits_or_as_policy_says(
    site: Site, key: str, came: list[int]
) -> None:
    done = site.desk("keys", "reset", key, "-c", "cases", "--learn", *WHY)
    assert (done.code, done.out) == (0, f"cases: {key} starts anew\n"), done.err
    if key == "z":
        asyncio.run(site.desk.shop.deliver(site.cases, case("z", 1, id="counted anew")))
    site.desk.work_off(site.cases)
    assert applied(site.desk.shop, key) == came


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("unblock a -c orders", 'say why: --reason "…"; it is kept in the audit'),
        ("skip x -c cases --reason _", 'say why: --reason "…"; it is kept in the audit'),
        ("reset x -c cases --last 3", 'say why: --reason "…"; it is kept in the audit'),
        ("reset x -c cases --reason r", "say where the key stands: --last VERSION, or --learn"),
        ("reset x -c cases --reason r --last 3 --learn", "say where the key stands: --last VERSION, or --learn"),
        (
            "unblock nobody -c orders --reason r",
            "consumer 'orders', key 'nobody': no such key; oncebox keys list shows those that stand still",
        ),
        (
            "unblock a -c cases --reason r",
            "consumer 'cases', key 'a': no such key; oncebox keys list shows those that stand still",
        ),
        (
            "unblock x -c cases --reason r",
            "consumer 'cases', key 'x': it is not blocked; oncebox keys list shows what stands still",
        ),
        (
            "skip a -c orders --reason r",
            "consumer 'orders', key 'a': it waits for no version; oncebox keys list shows what stands still",
        ),
        (
            "skip z -c cases --reason r",
            "consumer 'cases', key 'z': it waits for no version; oncebox keys list shows what stands still",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_done_is_refused_with_the_next_step(site: Site, words: str, text: str) -> None:
    before = site.desk("keys", "list", "--json").json()["keys"]
    assert site.desk.refuses("keys", *(word.replace("_", " ") for word in words.split())) == text
    after = site.desk("keys", "list", "--json").json()["keys"]
    assert [(each["key"], each["waiting"]) for each in after] == [
        (each["key"], each["waiting"]) for each in before
    ]


def test_a_change_needs_a_consumer(site: Site) -> None:
    for verb in ("unblock", "skip", "reset"):
        refused = site.desk("keys", verb, "a", *WHY)
        assert (refused.code, "--consumer" in refused.err) == (2, True)


def test_on_postgresql_as_a_process(pg_url: str, tmp_path: Path) -> None:
    shop = Shop("psycopg", pg_url, "stored")
    site = fill(shop)
    where = ("--database", pg_url)
    assert {each["key"] for each in site.desk("keys", "list", "--json").json()["keys"]} == {
        "a",
        HOSTILE,
        "x",
        "y",
    }
    done = oncebox("keys", "unblock", "a", "-c", "orders", *WHY, *where, cwd=tmp_path)
    assert (done.code, done.out) == (0, "orders: a goes on without its dead head\n"), done.err
    assert site.desk("keys", "skip", "x", "-c", "cases", *WHY).code == 0
    assert site.desk("keys", "reset", "y", "-c", "cases", "--learn", *WHY).code == 0
    for consumer in (site.orders, site.cases):
        site.desk.work_off(consumer)
    assert [applied(shop, key) for key in "axy"] == [[2, 3], [1, 4, 5], [2]]
    assert [row[0] for row in site.desk.audit("verb")] == ["keys unblock", "keys skip", "keys reset"]
    asyncio.run(shop.close())
