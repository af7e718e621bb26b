"""What the guard left unfinished is seen before another delivery comes, and somebody decides about it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from oncebox import App, Inbox, Message, Status
from oncebox.core import partitions
from oncebox.metrics import Operations
from oncebox.metrics.families import render
from oncebox.schema import migrate
from tests.cli.inside import inside
from tests.cli.kit import Done
from tests.doctor.kit import ask
from tests.operate.partitioned import Ledger, uuid7

MANY = 130
"""More than one transaction holds."""
WHY = ("--reason", "looked at it", "--by", "ada")


class Site:
    """A database that services use the guard on, and an operator."""

    def __init__(self, url: str) -> None:
        self.url = url
        migrate(url)

    def __call__(self, *words: str) -> Done:
        return inside(*words, "--database", self.url)

    def connect(self) -> Any:
        if self.url.startswith("sqlite"):
            return closing(sqlite3.connect(self.url.removeprefix("sqlite:///")))
        return closing(psycopg.connect(self.url))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect() as handle:
            return list(handle.execute(self.named(sql)).fetchall())

    def named(self, sql: str) -> str:
        return sql.replace("oncebox.", "oncebox_") if self.url.startswith("sqlite") else sql

    def leave(self, *ids: str, consumer: str = "guarded", payload: bytes | None = None) -> None:
        """Blocks that fail, in transactions that are committed all the same."""
        with self.connect() as handle:
            for id_ in ids:
                with (
                    suppress(ValueError),
                    Inbox(consumer).once(handle, id_, type="paid", payload=payload) as claim,
                ):
                    assert claim.first
                    raise ValueError("half the work")
                handle.commit()

    def claim(self, id_: str, consumer: str = "guarded") -> str:
        """What the next delivery is told."""
        with self.connect() as handle:
            with Inbox(consumer).once(handle, id_, type="paid") as claim:
                told = "first" if claim.first else claim.state
            handle.commit()
        return str(told)

    def waiting(self, *words: str) -> list[str]:
        found = self("dead", "list", *words, "--json").json()["dead"]
        assert all(each["reason"] == "unfinished" and each["is_claim"] for each in found)
        return [each["id"] for each in found]

    def counts(self) -> dict[str, int]:
        found = self("status", "--json").json()["consumers"]
        return {each["consumer"]: each["unfinished"] for each in found if each["unfinished"]}

    def audit(self) -> list[tuple[Any, ...]]:
        columns = "verb, who, reason, consumer, message_id, result"
        return self.rows(f"SELECT {columns} FROM oncebox.audit ORDER BY message_id")


@pytest.fixture
def site(database_url: str) -> Site:
    return Site(database_url)


def test_it_is_seen_wherever_somebody_looks(site: Site) -> None:
    site.leave("a", "b")
    site.leave("c", consumer="other")
    assert site.claim("fine") == "first"
    assert site.counts() == {"guarded": 2, "other": 1}
    text = " ".join(site("status").out.split())
    assert "guarded: 2 claimed by the guard and committed unfinished" in text
    assert "other: 1 claimed by the guard" in text
    assert site.waiting() == ["a", "b", "c"]
    assert site.waiting("--why", "unfinished", "-c", "guarded", "--type", "paid", "--newer", "1h") == [
        "a",
        "b",
    ]
    nothing = (
        ("--why", "terminal"),
        ("--older", "1h"),
        ("--type", "x"),
        ("--key", "k"),
        ("--error", "ValueError"),
    )
    assert [site.waiting(*words) for words in nothing] == [[], [], [], [], []]
    assert "Nothing that is dead matches" in site("dead", "list", "--type", "x").out
    assert "unfinished (by the guard)" in " ".join(site("dead", "list").out.split())

    async def scrape() -> str:
        app = App(site.url)
        operations = Operations(app)
        try:
            return render(await operations.families()).decode()
        finally:
            await operations.close()
            await app.aclose()

    assert "\noncebox_unfinished_claims 3\n" in asyncio.run(scrape())


def test_where_there_is_none_nobody_speaks_of_it(site: Site) -> None:
    assert site.claim("fine") == "first"
    assert "unfinished" not in site("status").out
    assert site.counts() == {}
    assert site.waiting() == []
    assert ask(site.url).codes == set()


def test_one_that_is_redriven_runs_at_its_next_delivery(site: Site) -> None:
    site.leave("a", "b")
    done = site("dead", "redrive", "a", *WHY)
    assert (done.code, done.out) == (0, "0 in line again, 1 free to run when delivered again\n")
    assert site.audit() == [
        ("dead redrive", "ada", "looked at it", "guarded", "a", "free: its next delivery is the first")
    ]
    assert site.waiting() == ["b"]
    assert [site.claim("a"), site.claim("a")] == ["first", "done"]


def test_one_that_is_discarded_never_runs(site: Site) -> None:
    site.leave("a", payload=b"{}")
    assert site("dead", "discard", "a", *WHY).out == "1 discarded\n"
    assert [each[0] + each[-1] for each in site.audit()] == ["dead discarddiscarded"]
    assert site.counts() == {}
    assert site.claim("a") == "discarded"
    assert ask(site.url).codes == set()


def test_many_at_once_are_counted_before_anything_is_changed(site: Site) -> None:
    ids = [f"m{n:03}" for n in range(MANY)]
    site.leave(*ids)
    site.leave("kept", consumer="other")
    words = ("--all", "--consumer", "guarded", *WHY)
    dry = site("dead", "redrive", *words, "--json").json()
    assert (dry["applied"], dry["count"], dry["claims"]) == (False, MANY, MANY)
    assert [(each["reason"], each["type"], each["count"]) for each in dry["counts"]] == [
        ("unfinished", "paid", MANY)
    ]
    assert "130 free to run when delivered again; --apply does it" in site("dead", "redrive", *words).out
    assert site.audit() == []
    done = site("dead", "redrive", *words, "--apply", "--json").json()
    assert (done["count"], done["claims"], sorted(done["ids"])) == (MANY, MANY, ids)
    assert site.waiting() == ["kept"]
    assert len(site.audit()) == MANY


def test_what_is_in_somebodys_hands_is_left_to_them(pg_url: str) -> None:
    site = Site(pg_url)
    site.leave("a", "b")
    with psycopg.connect(pg_url) as other:
        Inbox("guarded").resolve(other, "a", done=True)
        assert site("dead", "discard", "--all", "--apply", *WHY).out == "1 discarded\n"
        other.commit()
    assert site.counts() == {}
    assert site.claim("a") == "done"


def test_neither_is_edited_nor_resolved(site: Site, tmp_path: Any) -> None:
    site.leave("a")
    (tmp_path / "new").write_text("{}")
    refused = site("dead", "edit", "a", "--payload", str(tmp_path / "new"), *WHY)
    assert refused.code == 2
    assert "a claim of the guard's that was left unfinished" in refused.err
    assert site.waiting() == ["a"]
    assert site("dead", "redrive", "a", "--consumer", "other", *WHY).code == 2


def test_once_the_app_has_it_too_it_is_told_once(site: Site) -> None:
    """With its payload it is a dead message like any other."""
    site.leave("a", "clash", consumer="billing", payload=b'{"n":1}')

    async def deliver() -> list[Any]:
        app = App(site.url)
        billing = app.consumer("billing")

        @billing.handler()
        async def paid(message: Message) -> None: ...

        messages = [
            Message(id="a", type="paid", payload=b'{"n":1}'),
            Message(id="clash", type="paid", payload=b'{"n":2}'),
        ]
        outcomes = [await billing.process(each) for each in messages]
        await app.aclose()
        return [(outcome.status, outcome.reason) for outcome in outcomes]

    assert asyncio.run(deliver()) == [(Status.DEAD, "unfinished"), (Status.DEAD, "conflict")]
    found = site("dead", "list", "--json").json()["dead"]
    assert sorted((each["id"], each["reason"], each["is_claim"]) for each in found) == [
        ("a", "unfinished", False), ("clash", "conflict", False), ("clash", "unfinished", True),
    ]  # fmt: skip
    assert site.counts() == {"billing": 1}, "a conflict says nothing about the claim that it clashes with"
    assert site("dead", "redrive", "a", *WHY).out == "1 in line again\n"
    refused = site("dead", "redrive", "clash", *WHY)
    assert (refused.code, "settle it with oncebox dead resolve" in refused.err) == (2, True)
    assert site("dead", "redrive", "--all", *WHY, "--json").json()["count"] == 0
    assert site("dead", "resolve", "clash", "--stands", "first", *WHY).code == 0
    assert "1 free to run" in site("dead", "redrive", "clash", *WHY).out


def test_a_ledger_in_partitions_finds_it_by_index_everywhere(pg_url: str) -> None:
    ledger = Ledger(pg_url)
    site = Site(pg_url)
    early, late = uuid7(), uuid7()
    site.leave(early, "no time in it", consumer="billing")
    site.leave("elsewhere", consumer="other")
    ledger.split(3)
    site.leave(late, consumer="billing")
    expected = {"billing": 3, "other": 1}
    assert site.counts() == expected
    assert ask(pg_url).codes == {"claims-unfinished"}
    leaves = {leaf.name for leaf in ledger.tree().leaves}
    assert indexed(ledger) >= leaves
    assert site("dead", "redrive", late, *WHY).code == 0
    assert site.claim(late, "billing") == "first"
    ledger.ask(partitions.undo(ledger.queries, "billing"))
    ledger.own.close()
    assert site.counts() == {"billing": 2, "other": 1}
    assert ask(pg_url).codes == {"claims-unfinished"}


def indexed(ledger: Ledger) -> set[str]:
    """Tables whose index hangs below the ledger's own, and is valid."""
    rows = ledger.rows(
        "WITH RECURSIVE below AS (SELECT 'oncebox.ledger_unfinished'::regclass::oid AS oid "
        "UNION ALL SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid) "
        "SELECT c.relname FROM below JOIN pg_index x ON x.indexrelid = below.oid AND x.indisvalid "
        "JOIN pg_class c ON c.oid = x.indrelid"
    )
    return {row[0] for row in rows}
