"""What is kept of a payload: until it is done, always, never; and that kept ones go with their ledger row."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncebox import App, Dead, Message, Status
from oncebox.codec import pack_headers
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, dead_letters, decide
from oncebox.errors import ConfigError
from oncebox.policy import Policy
from oncebox.schema import migrate
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, Shop, effect, event
from tests.operate.test_sweep import WINDOW, age, marked, walk
from tests.order.lines import BY_KEY, case, note, put


def kept(shop: Shop) -> list[tuple[Any, ...]]:
    columns = "source, message_id, key, payload, headers, content_type"
    rows = shop.rows(f"SELECT {columns} FROM {shop.table('kept')} ORDER BY seq")
    return [(*row[:3], bytes(row[3]), bytes(row[4]), row[5]) for row in rows]


async def test_always_keeps_what_a_replay_needs(shop: Shop) -> None:
    billing = shop.consumer(keep_payload="always")
    shop.handler(billing)(effect)
    message = Message(
        id="evt-1", type="paid", source="shop", payload={"key": "evt-1"}, key="k", headers=[("h", b"\xff")]
    )
    await shop.settle(billing, message)
    assert kept(shop) == [
        ("shop", "evt-1", "k", message.payload, pack_headers(message.headers), "application/json")
    ]
    await shop.deliver(billing, message)
    assert len(kept(shop)) == 1, "a duplicate is not kept again"


@inline
async def test_until_done_keeps_nothing_of_what_is_done(shop: Shop) -> None:
    billing = shop.consumer()
    shop.handler(billing)(effect)
    await shop.settle(billing, event())
    assert shop.count("kept") == shop.count("queue") == 0


@inline
async def test_what_fails_is_not_kept_as_done(shop: Shop) -> None:
    billing = shop.consumer(keep_payload="always")

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise Dead("no")

    await shop.settle(billing, event())
    assert shop.count("kept") == 0
    assert shop.count("dead") == 1


async def test_a_batch_is_kept_in_the_order_of_its_effects(shop: Shop) -> None:
    billing = shop.consumer(keep_payload="always", batch=10)
    shop.handler(billing)(effect)
    await shop.settle_all(billing, [event(f"evt-{n}") for n in (3, 1, 2)])
    assert [row[1] for row in kept(shop)] == ["evt-3", "evt-1", "evt-2"]


@stored
async def test_long_handlers_keep_too(shop: Shop) -> None:
    billing = shop.consumer(keep_payload="always")
    shop.handler(billing, event().type, long=True)(effect)
    await shop.deliver(billing, event())
    await shop.work(billing, long=True)
    assert [row[1] for row in kept(shop)] == ["evt-1"]


async def test_ordered_flows_keep_too(shop: Shop) -> None:
    consumer = shop.consumer(**BY_KEY, keep_payload="always")
    shop.handler(consumer)(note)
    await put(shop, consumer, case("a", 1), case("a", 2))
    if shop.mode == "stored":
        await shop.work_off(consumer)
    assert len(kept(shop)) == 2


async def test_kept_payloads_go_with_their_ledger_rows(shop: Shop) -> None:
    shop.rows(f"DELETE FROM {shop.table('sweep')}")
    shop.rows(f"INSERT INTO {shop.table('sweep')} (name) VALUES ('ledger')")
    billing = shop.consumer(keep_payload="always", retention=WINDOW)
    shop.handler(billing)(effect)
    await shop.settle(billing, event("old"))
    age(shop, 12)
    marked(shop, billing, 11)
    await shop.settle(billing, event("new"))
    assert await walk(shop, billing) == 1
    assert [row[1] for row in kept(shop)] == ["new"]


@inline
async def test_never_keeps_no_payload_of_the_dead_and_says_so(shop: Shop) -> None:
    billing = shop.consumer(keep_payload="never")

    @shop.handler(billing)
    async def fails(call: Call) -> None:
        raise Dead("no")

    assert (await shop.settle(billing, event())).status is Status.DEAD
    assert bytes(shop.rows(f"SELECT payload FROM {shop.table('dead')}")[0][0]) == b""
    queries = shop.app.database.queries
    found = await shop.perform(billing, lambda work: dead_letters(queries, Choice()))
    assert [each.is_kept for each in found] == [False]
    act = Act(verb="dead redrive", who="me", reason="fixed")
    assert not await shop.perform(billing, lambda work: decide(queries, "redrive", Choice(), act))
    assert await shop.perform(billing, lambda work: decide(queries, "discard", Choice(), act))


def test_never_is_refused_where_payloads_have_to_wait() -> None:
    for words in ({"mode": "stored"}, {"order_by": "key", "key": "k"}, {"claim_check_bytes": 10}):
        with pytest.raises(ConfigError, match='keep_payload="never"'):
            Policy(keep_payload="never", **words)

    class Log:
        delays = False
        identity = None

    with pytest.raises(ConfigError, match="hold a message back"):
        App("sqlite:///none.db").consumer("c", Log(), keep_payload="never")  # type: ignore[arg-type]


def test_a_message_in_your_own_transaction_is_kept_with_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    migrate(url)
    billing = App(url).consumer("billing", keep_payload="always")

    @billing.handler()
    def handle(payload: dict[str, str]) -> None:
        pass

    with closing(sqlite3.connect(tmp_path / "shop.db")) as conn:
        for commits in (False, True):
            billing.process_sync(event(), conn)
            conn.commit() if commits else conn.rollback()
            assert conn.execute("SELECT count(*) FROM oncebox_kept").fetchone() == (int(commits),)
