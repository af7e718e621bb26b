"""Shadow replay: says what would change, table by table, and changes nothing."""

import pytest

from oncebox import Consumer
from oncebox.brokers.memory import Memory
from oncebox.core.replay_terms import Chosen
from oncebox.core.shadow import Rows
from oncebox.errors import UsageError
from tests.core.fixtures import inline, stored
from tests.core.kit import Call, Shop, event
from tests.operate.replays import events, handled, projection, shadowed
from tests.operate.test_replay import calls, keep_call


def everything(shop: Shop) -> dict[str, int]:
    names = ("ledger", "kept", "queue", "dead", "outbox", "audit", "replay", "result", "tally")
    return {name: shop.count(name) for name in names} | {"effects": shop.effects().total()}


def busy(shop: Shop) -> Consumer:
    """A handler that inserts, updates, deletes, publishes and sends; and fails for one of its messages."""
    shop.app.sinks = (("*", Memory().topic("t")),)
    page = shop.consumer("page", keep_payload="always", replay="rebuild")
    shop.consumer("mailer", mode="stored")

    @shop.handler(page)
    async def work(call: Call) -> None:
        if call.message.replay and call.message.id == "evt-2":
            raise ValueError("canary-secret")
        await call.db.effect(call.message.id)
        await call.db.run("UPDATE shop_effect SET note = 'x' WHERE key = ?", call.message.id)
        await call.db.run("INSERT INTO shop_line (key, version) VALUES (?, ?)", "k", 1)
        await call.db.run("DELETE FROM shop_line WHERE key = ?", "k")
        call.tx.publish("told", {})
        call.tx.send("mailer", "mail", {})

    return page


async def test_it_counts_rows_and_sends_and_failures_and_leaves_no_trace(shop: Shop) -> None:
    page = busy(shop)
    await handled(shop, page, events(3))
    before = everything(shop)
    seen = await shadowed(shop, page)
    assert everything(shop) == before
    dot = "" if shop.kind.engine == "sqlite" else "public."
    assert seen.tables == {
        f"{dot}shop_effect": Rows(inserted=2, updated=4),
        f"{dot}shop_line": Rows(inserted=2, deleted=2),
    }
    assert (seen.messages, seen.ended) == (2, "done")
    assert (seen.published, seen.sent) == ({"told": 2}, {"mailer: mail": 2})
    assert (seen.failed, seen.failures) == ({"ValueError": 1}, [{"id": "evt-2", "error": "ValueError"}])
    again = await shadowed(shop, page)
    assert again == seen, "nothing of the first is left in the second"


@inline
async def test_filters_choose_here_too(shop: Shop) -> None:
    page = projection(shop)
    await handled(shop, page, [event("a", type="x"), event("b", type="y")])
    assert (await shadowed(shop, page, chosen=Chosen(type="x"))).messages == 1


@stored
async def test_calls_are_counted_and_not_made(shop: Shop) -> None:
    called: list[str] = []
    page = projection(shop, replay="suppress_effects")
    calls(shop, page, called)
    await shop.settle(page, event("evt-1"))
    keep_call(shop, page)
    seen = await shadowed(shop, page)
    assert (seen.messages, seen.calls, called) == (1, {"mail": 1}, [])


@inline
async def test_forbidden_is_forbidden(shop: Shop) -> None:
    page = projection(shop, replay="forbid")
    with pytest.raises(UsageError, match="forbid"):
        await shadowed(shop, page)
