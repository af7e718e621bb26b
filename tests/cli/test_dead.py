"""`oncebox dead`: given-up messages are listed, run again, let go, settled or edited, each with its audit row."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from oncebox import Backoff, Consumer, Dead, Status
from oncebox.core.dead import BATCH
from tests.cli.inside import Desk
from tests.cli.kit import oncebox
from tests.core.kit import Call, Shop, effect, event

SECRET = "canary-in-the-payload"
WHY = ("--reason", "it is fixed")
REASON = 'say why: --reason "…"; it is kept in the audit'
NAMED = "name the messages: ids, or --all (with --consumer, --type, --error …, if you like)"
NOT_DEAD = "not dead: done, which is not run again, or waiting, or never seen here (oncebox show ID)"
CLASH = "'c' is in conflict (settle it with oncebox dead resolve)"
OTHERWISE = "'p-1' is dead, but not as the other options say (oncebox dead list ID)"
TWICE = (
    "id 'p-0' is there 2 times; name one of: --consumer billing --source '', "
    "--consumer other --source elsewhere"
)


class Site(NamedTuple):
    """A desk, the consumer whose messages died, and what killed them."""

    desk: Desk
    billing: Consumer
    broken: list[bool]

    def mended(self) -> dict[str, int]:
        """How often each took effect, once the handler works again and everything has run."""
        self.broken.clear()
        self.desk.work_off(self.billing)
        return dict(self.desk.shop.effects())


def fill(shop: Shop, *, bulk: int = 0) -> Site:
    """Dead: p-0 to p-2 (exhausted), s-0 (terminal), c (a conflict beside what is done)."""
    billing = shop.consumer("billing", batch=50, retry=Backoff(attempts=1))
    other = shop.consumer("other", batch=50)
    broken = [True]

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        if broken and call.message.id != "c":
            raise (Dead if call.message.type == "sent" else TimeoutError)("no \x1b[31manswer")
        await effect(call)

    @shop.handler(other)
    async def refuses(call: Call) -> None:
        raise Dead("never")

    async def deliver() -> None:
        secret = {"text": SECRET}
        for n in range(3):
            await shop.deliver(billing, event(f"p-{n}", key="k" if n else None, payload=secret))
        await shop.deliver(billing, event("s-0", type="sent", payload=secret))
        await shop.deliver(billing, event("c", payload={"n": 1}))
        await shop.work_off(billing)
        await shop.deliver(billing, event("c", payload={"n": 2}))
        for n in range(bulk):
            await shop.deliver(billing, event(f"b-{n}", type="bulk"))
        await shop.deliver(other, event("p-0", source="elsewhere"))
        for consumer in (billing, other):
            await shop.work_off(consumer)

    asyncio.run(deliver())
    return Site(Desk(shop), billing, broken)


@pytest.fixture
def site(sqlite_url: str) -> Iterator[Site]:
    shop = Shop("sqlite", sqlite_url, "stored")
    yield fill(shop)
    asyncio.run(shop.close())


def ids(site: Site, *words: str) -> list[str]:
    return [each["id"] for each in site.desk("dead", "list", *words, "--json").json()["dead"]]


def test_the_dead_are_listed_without_payloads(site: Site) -> None:
    found = site.desk("dead", "list", "-c", "billing", "--json").json()["dead"]
    assert {each["id"]: (each["reason"], each["error_type"], each["is_conflict"]) for each in found} == {
        "p-0": ("exhausted", "TimeoutError", False),
        "p-1": ("exhausted", "TimeoutError", False),
        "p-2": ("exhausted", "TimeoutError", False),
        "s-0": ("terminal", "oncebox.errors.Dead", False),
        "c": ("conflict", "oncebox.errors.PayloadConflict", True),
    }
    assert {"fingerprint", "lane", "payload"} & set(found[0]) == set()
    table = site.desk("dead", "list")
    assert table.code == 0
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in table.out.splitlines() if "│" in line
    ]
    shown = {(row[0], row[2]): row[1:2] + row[3:8] for row in rows}
    assert shown["billing", "p-1"] == ["", "paid", "k", "exhausted", "TimeoutError", "1"]
    assert shown["other", "p-0"][0] == "elsewhere"
    for words in ((), ("--json",)):
        out = site.desk("dead", "list", *words).out
        assert SECRET not in out
        assert "\x1b" not in out


def test_lists_are_narrowed(site: Site) -> None:
    assert sorted(ids(site, "--key", "k")) == ["p-1", "p-2"]
    assert sorted(ids(site, "--error", "TimeoutError", "--type", "paid", "--newer", "1h")) == [
        "p-0",
        "p-1",
        "p-2",
    ]
    assert ids(site, "--why", "terminal", "--consumer", "billing") == ["s-0"]
    assert ids(site, "--source", "elsewhere") == ["p-0"]
    assert sorted(ids(site, "p-0", "p-1")) == ["p-0", "p-0", "p-1"]
    assert ids(site, "--older", "2h") == []
    nothing = site.desk("dead", "list", "--older", "2h")
    assert (nothing.code, nothing.out) == (
        0,
        "Nothing that is dead matches. There is some of 'billing', 'other': oncebox dead list shows it.\n",
    )


def test_redriven_messages_run_again(site: Site) -> None:
    done = site.desk("dead", "redrive", "p-0", "p-1", "p-1", "-c", "billing", *WHY, "--by", "ann")
    assert (done.code, done.out) == (0, "2 in line again\n"), done.err
    assert site.desk.audit() == [
        ("dead redrive", "ann", "it is fixed", "billing", "", name, "waiting") for name in ("p-0", "p-1")
    ]
    assert site.mended() == {"p-0": 1, "p-1": 1, "c": 1}


def test_discarded_messages_never_run(site: Site) -> None:
    done = site.desk("dead", "discard", "s-0", *WHY, "--json").json()
    ((act, result),) = site.desk.audit("act, result")
    assert result == "discarded"
    assert done == {
        "act": act, "decision": "discard", "applied": True, "count": 1, "claims": 0, "counts": [], "ids": ["s-0"],
    }  # fmt: skip
    assert site.mended() == {"c": 1}
    again = event("s-0", type="sent", payload={"text": SECRET})
    assert asyncio.run(site.desk.shop.deliver(site.billing, again)).status is Status.DISCARDED


def test_all_of_a_kind_are_counted_first_and_changed_when_it_is_said_so(sqlite_url: str) -> None:
    shop = Shop("sqlite", sqlite_url, "stored")
    site = fill(shop, bulk=BATCH + 2)
    bulk = ("--all", "--type", "bulk", "-c", "billing", *WHY)
    dry = site.desk("dead", "redrive", *bulk)
    assert (dry.code, dry.out) == (
        0,
        f"{BATCH + 2}  billing  exhausted  bulk\n{BATCH + 2} would be in line again; --apply does it\n",
    )
    counted = site.desk("dead", "discard", *bulk, "--json").json()
    assert (counted["applied"], counted["count"], counted["ids"]) == (False, BATCH + 2, [])
    assert counted["counts"] == [
        {"consumer": "billing", "reason": "exhausted", "type": "bulk", "count": BATCH + 2}
    ]
    assert (site.desk.audit(), len(ids(site, "--type", "bulk"))) == ([], BATCH + 2)
    done = site.desk("dead", "redrive", *bulk, "--apply", "--rate", "1000", "--json").json()
    assert (done["applied"], done["count"], len(done["ids"])) == (True, BATCH + 2, BATCH + 2)
    assert set(site.desk.audit("act, verb")) == {(done["act"], "dead redrive")}
    (chosen,) = {row[0] for row in site.desk.audit("filter")}
    assert json.loads(chosen) == {"consumer": "billing", "type": "bulk"}
    assert len(site.desk.audit()) == BATCH + 2
    assert site.mended() == {**{f"b-{n}": 1 for n in range(BATCH + 2)}, "c": 1}
    asyncio.run(shop.close())


def test_a_dry_run_counts_no_more_than_it_would_change(site: Site) -> None:
    dry = site.desk("dead", "redrive", "--all", "-c", "billing", *WHY, "--json").json()
    done = site.desk("dead", "redrive", "--all", "-c", "billing", *WHY, "--apply", "--json").json()
    assert (dry["count"], done["count"]) == (4, 4)
    assert sorted(done["ids"]) == ["p-0", "p-1", "p-2", "s-0"], "a conflict is not redriven"
    assert site.desk("dead", "redrive", "--all", "-c", "billing", *WHY, "--apply").out == "0 in line again\n"


@pytest.mark.parametrize("stands", ["first", "second"])
def test_a_conflict_is_settled(site: Site, stands: str) -> None:
    words = ("dead", "resolve", "c", "--stands", stands, *WHY)
    if stands == "first":
        assert site.desk(*words).out == "c: the first payload stands\n"
        assert site.desk.audit("verb, message_id, result") == [
            ("dead resolve", "c", "the first payload stands")
        ]
        assert site.mended() == {"c": 1}
    else:
        done = site.desk(*words, "--json").json()
        assert (done["stands"], done["id"] != "c") == ("second", True)
        assert site.desk.audit("message_id, result") == [
            ("c", f"replaced by {done['id']}"),
            (done["id"], "waiting"),
        ]
        assert site.mended() == {"c": 1, done["id"]: 1}
    assert "c" not in ids(site)


def test_an_edited_message_runs_under_a_new_id(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "fixed.json"
    file.write_text('{"text": "mended"}')
    done = site.desk("dead", "edit", "s-0", "--payload", str(file), *WHY)
    assert done.code == 0, done.err
    now = done.out.removeprefix("in line as ").strip()
    assert site.desk.audit("verb, message_id, result") == [
        ("dead edit", "s-0", f"replaced by {now}"), ("dead edit", now, "waiting")
    ]  # fmt: skip
    assert site.mended() == {"c": 1, now: 1}
    assert "s-0" not in ids(site)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("redrive", NAMED),
        ("discard", NAMED),
        ("redrive p-0 --all --reason r", NAMED),
        ("redrive p-0", REASON),
        ("discard p-0 --reason _", REASON),
        ("discard --all", REASON),
        ("redrive p-0 --reason r --apply", "--apply goes with --all; messages that are named are changed at once"),
        ("redrive nobody --reason r", "0 changed, but 'nobody' is " + NOT_DEAD),
        ("redrive c --reason r", "0 changed, but " + CLASH),
        ("redrive p-1 -c other --reason r", "0 changed, but " + OTHERWISE),
        ("discard c nobody --reason r", f"0 changed, but {CLASH}; 'nobody' is {NOT_DEAD}"),
        ("list --older soon", "--older 'soon': a number and a unit, as in 90s, 15m, 6h, 2d"),
        ("redrive --all --newer 5 --reason r", "--newer '5': a number and a unit, as in 90s, 15m, 6h, 2d"),
        ("resolve c --reason r", "say which payload stands: --stands first, or --stands second"),
        ("resolve c --stands both --reason r", "say which payload stands: --stands first, or --stands second"),
        ("resolve c --stands first", REASON),
        ("resolve p-1 --stands first --reason r", "id 'p-1' is not in conflict; oncebox dead list shows what is"),
        ("edit p-1 --reason r", "name the file with the new payload: --payload fixed.json"),
        ("edit p-1 --reason r --payload /none/x", "--payload /none/x: can't be read (No such file or directory)"),
        ("edit p-1 --payload /dev/null", REASON),
        ("edit nobody --reason r --payload /dev/null", "id 'nobody' is not dead; oncebox dead list shows what is"),
        ("edit p-0 --reason r --payload /dev/null", TWICE),
    ],
)  # fmt: skip
def test_what_can_not_be_done_is_refused_with_the_next_step(site: Site, words: str, text: str) -> None:
    before = site.desk.shop.dead()
    assert site.desk.refuses("dead", *(word.replace("_", " ") for word in words.split())) == text
    assert site.desk.shop.dead() == before


def test_the_source_that_a_refusal_names_can_be_given(site: Site) -> None:
    done = site.desk(
        "dead", "edit", "p-0", "--consumer", "billing", "--source", "", "--payload", "/dev/null", *WHY
    )
    assert done.code == 0, done.err


def test_what_was_changed_before_a_refusal_is_on_record(site: Site) -> None:
    done = site.desk("dead", "redrive", "p-1", "nobody", *WHY)
    assert (done.code, "1 changed, but 'nobody' is not dead" in done.err) == (2, True)
    assert site.desk.audit("message_id") == [("p-1",)]


def test_on_postgresql_as_a_process(pg_url: str, tmp_path: Path) -> None:
    shop = Shop("psycopg", pg_url, "stored")
    site = fill(shop)
    file = tmp_path / "fixed.json"
    file.write_text("{}")
    assert sorted(ids(site, "-c", "billing")) == ["c", "p-0", "p-1", "p-2", "s-0"]
    words = ("--all", "--error", "TimeoutError", *WHY, "--apply", "--json", "--database", pg_url)
    done = oncebox("dead", "redrive", *words, cwd=tmp_path).json()
    assert sorted(done["ids"]) == ["p-0", "p-1", "p-2"]
    now = site.desk("dead", "resolve", "c", "--stands", "second", *WHY, "--json").json()["id"]
    edited = site.desk("dead", "edit", "s-0", "--payload", str(file), *WHY, "--json").json()["id"]
    assert site.desk("dead", "discard", "p-0", "-c", "other", *WHY).out == "1 discarded\n"
    assert site.mended() == {"p-0": 1, "p-1": 1, "p-2": 1, "c": 1, now: 1, edited: 1}
    assert len(site.desk.audit()) == 3 + 2 + 2 + 1
    asyncio.run(shop.close())
