"""A scrape under load parses, never goes back, and agrees with the database to the last message."""

import os
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncebox import Message
from tests.metrics.kit import Series, Shop, counters, messages, open_shop
from tests.waiting import eventually_async

GOOD, BAD, STRANGE = 100, 7, 40


def payments() -> list[Message]:
    """Every one of them twice, in any order."""
    good = [Message(id=f"good-{n}", type="payment", payload={"amount": n}) for n in range(GOOD)]
    bad = [Message(id=f"bad-{n}", type="payment", payload={"bad": True}) for n in range(BAD)]
    both = [*good, *bad] * 2
    random.Random(7).shuffle(both)
    return both


def asking(url: str) -> Callable[[str], list[Any]]:
    """Ask the shop's database."""
    if url.startswith("sqlite"):
        place = url.removeprefix("sqlite:///")

        def ask(sql: str) -> list[Any]:
            database = sqlite3.connect(place, timeout=30)
            try:
                with database:
                    return database.execute(sql.replace("oncebox.", "oncebox_")).fetchall()
            finally:
                database.close()

        return ask

    def ask_postgresql(sql: str) -> list[Any]:
        with psycopg.connect(url) as connection:
            done = connection.execute(sql)
            return done.fetchall() if done.description else []

    return ask_postgresql


async def scrape_until_quiet(shop: Shop) -> Series:
    """Scrape as fast as it goes while there is something to do; no counter may ever go back."""
    before: Series = {}
    while True:
        quiet = shop.memory.stats()["payments"].depth == 0
        now = await shop.scrape()
        back = {key: value for key, value in counters(before).items() if now.get(key, 0) < value}
        assert not back
        before = now
        # Not there while the database takes too long to answer.
        waiting = now.get(("oncebox_waiting", (("consumer", "billing"),)))
        if quiet and waiting == 0 and any(messages(now).values()):
            return now


@pytest.mark.parametrize(
    ("engine", "mode", "processes"),
    [("sqlite", "inline", 1), ("postgresql", "inline", 2), ("postgresql", "stored", 2)],
)
async def test_a_scrape_under_load_parses_and_once_quiet_it_is_what_the_database_has(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, mode: str, processes: int
) -> None:
    url: str = request.getfixturevalue("sqlite_url" if engine == "sqlite" else "pg_url")
    ask = asking(url)
    ask("CREATE TABLE paid (id text)")
    async with open_shop(tmp_path, url, mode=mode, processes=processes) as shop:
        sent = payments()
        shop.memory.put("payments", *sent)
        await scrape_until_quiet(shop)

        def as_in_the_database(series: Series) -> bool:
            ended = messages(series)
            paid = ask("SELECT count(*), count(DISTINCT id) FROM paid")
            dead = ask("SELECT count(*) FROM oncebox.dead")
            took = series.get(
                ("oncebox_processing_seconds_count", (("consumer", "billing"), ("type", "payment")))
            )
            kept = series.get(("oncebox_dead", (("consumer", "billing"), ("reason", "terminal"))))
            again = ended.get("duplicate", 0) + ended.get("waiting", 0) + ended.get("in_flight", 0)
            return (
                paid == [(ended.get("processed"), ended.get("processed"))] == [(GOOD, GOOD)]
                and dead == [(ended.get("dead", 0) - dead_again(ended),)] == [(BAD,)]
                and kept == BAD
                # Two copies of a bad one may run at once: what the first rolls back, the second claims.
                and took == shop.runs() >= GOOD + BAD
                and again + dead_again(ended) >= GOOD + BAD
                and ended.get("stored", GOOD + BAD) == GOOD + BAD
            )

        await shop.scrape_until(as_in_the_database)
        assert (await shop.get("/healthz")).json() == {"ok": True}
        assert (await shop.get("/readyz")).json() == {"ok": True}
        shop.running.signal(signal.SIGTERM)
        assert await shop.running.ends() == 0


def dead_again(ended: dict[str, float]) -> float:
    return max(0, ended.get("dead", 0) - BAD)


async def test_counters_outlive_a_process_that_is_killed(pg_url: str, tmp_path: Path) -> None:
    ask = asking(pg_url)
    ask("CREATE TABLE paid (id text)")
    async with open_shop(tmp_path, pg_url, mode="inline", processes=2) as shop:
        shop.memory.put(
            "payments", *(Message(id=f"good-{n}", type="payment", payload={}) for n in range(100))
        )
        await shop.scrape_until(lambda series: messages(series) == {"processed": 100})
        # Counted before it is acked: what is not acked when its process dies comes again, as a duplicate.
        await eventually_async(lambda: shop.memory.stats()["payments"].acked == 100)
        # What was seen is written down: by whoever was asked, and by the other before.
        pids = [row[0] for row in ask("SELECT pid FROM oncebox.worker ORDER BY started")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await shop.running.says("was killed by SIGKILL; starting another", 2)
        await shop.running.says("serving http://", 4)
        assert messages(await shop.scrape()) == {"processed": 100}
        shop.memory.put("payments", Message(id="late", type="payment", payload={}))
        await shop.scrape_until(lambda series: messages(series) == {"processed": 101})
        shop.running.signal(signal.SIGTERM)
        assert await shop.running.ends() == 0


async def test_types_that_no_handler_names_are_one_series(sqlite_url: str, tmp_path: Path) -> None:
    asking(sqlite_url)("CREATE TABLE paid (id text)")
    async with open_shop(tmp_path, sqlite_url, mode="inline") as shop:
        shop.memory.put(
            "payments", *(Message(id=f"m-{n}", type=f"strange-{n}", payload={}) for n in range(STRANGE))
        )

        def all_are_counted(series: Series) -> bool:
            types = {dict(labels).get("type") for name, labels in series if name == "oncebox_messages_total"}
            assert types <= {"payment", "other"}
            dead = series.get(("oncebox_dead", (("consumer", "billing"), ("reason", "unknown type"))))
            return (messages(series, "other"), dead) == ({"dead": STRANGE}, STRANGE)

        await shop.scrape_until(all_are_counted)
