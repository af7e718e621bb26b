"""A person decides: `effects settle`, as a flow on real databases and as a command."""

import json
from pathlib import Path
from typing import Any

import pytest

from oncebox import Status
from oncebox.core.audit import Act
from oncebox.core.dead import Choice, decide
from oncebox.core.settle import open_effects, settle
from oncebox.errors import UsageError
from oncebox.runtime.inspect import Reader, read_status
from tests.cli.kit import oncebox
from tests.core.fixtures import on, stored
from tests.core.kit import Shop, event
from tests.outgoing.calls import Mailer, Provider
from tests.outgoing.kit import put

pytestmark = stored


async def ask(shop: Shop, op: Any) -> Any:
    reader = Reader(shop.app.database)
    try:
        return await reader.ask(op)
    finally:
        await reader.close()


async def parked(shop: Shop, *ids: str) -> Mailer:
    """A mailer with calls that nobody knows the end of."""

    def lost(call: Any) -> Any:
        raise TimeoutError

    provider = Provider()
    provider.does = lost
    mailer = Mailer(shop, provider)
    for id_ in ids or ("evt-1",):
        await mailer.receive(id_)
    for _ in range(2 * len(ids or ("",))):
        await mailer.work()
    return mailer


async def test_happened_makes_it_done_with_its_result(shop: Shop) -> None:
    mailer = await parked(shop)
    queries = shop.app.database.queries
    (open_one,) = await ask(shop, open_effects(queries))
    assert (open_one.consumer, open_one.id, open_one.state, open_one.calls) == (
        "mailer",
        "evt-1",
        "parked",
        1,
    )
    assert open_one.idempotency_key == mailer.provider.calls[0][1]
    done = await ask(shop, settle(queries, "evt-1", happened=True, reason="seen", result={"r": 1}))
    assert (done.state, mailer.effect(), shop.count("dead"), mailer.is_queued()) == (
        "done", ("done", 1), 0, False
    )  # fmt: skip
    outcome = await shop.deliver(mailer.consumer, event())
    assert (outcome.status, outcome.result) == (Status.DUPLICATE, {"r": 1})
    assert await ask(shop, open_effects(queries)) == []
    assert shop.rows(f"SELECT note FROM {shop.table('effect')}") == [("seen",)]
    audited = f"SELECT verb, reason, filter, consumer, message_id, result FROM {shop.table('audit')}"
    assert shop.rows(audited) == [("effects settle", "seen", '{"happened":true}', "mailer", "evt-1", "done")]


async def test_did_not_puts_it_back_and_the_call_is_made_with_the_same_key(shop: Shop) -> None:
    mailer = await parked(shop)
    queries = shop.app.database.queries
    await ask(shop, settle(queries, "evt-1", happened=False, reason="no such key"))
    assert (mailer.effect(), shop.count("dead"), shop.count("queue")) == (("failed", 1), 0, 1)
    mailer.provider.does = lambda call: "ok"
    (item,) = await mailer.work()
    assert item.outcome is not None
    assert item.outcome.status is Status.PROCESSED
    assert (mailer.effect(), len(set(mailer.provider.calls))) == (("done", 2), 1)


async def test_what_is_not_open_is_refused(shop: Shop) -> None:
    mailer = await parked(shop)
    queries = shop.app.database.queries
    with pytest.raises(UsageError, match="no effect of id 'nobody'"):
        await ask(shop, settle(queries, "nobody", happened=True, reason="x"))
    with pytest.raises(UsageError, match="no effect of id 'evt-1'"):
        await ask(shop, settle(queries, "evt-1", happened=True, reason="x", consumer="other"))
    await ask(shop, settle(queries, "evt-1", happened=True, reason="x", consumer="mailer", source=""))
    with pytest.raises(UsageError, match="its effect is done; there is nothing to settle"):
        await ask(shop, settle(queries, "evt-1", happened=False, reason="x"))
    assert mailer.effect() == ("done", 1)


async def test_a_call_in_progress_is_left_alone(shop: Shop) -> None:
    queries = shop.app.database.queries
    mailer = Mailer(shop, Provider())
    await mailer.receive()

    def through(op: Any) -> Any:
        step = next(op)
        while type(step).__name__ != "Handle":
            step = op.send((yield step))
        return None

    await mailer.work(through=through)
    assert mailer.effect() == ("started", 1)
    with pytest.raises(UsageError, match="a worker has it in hand right now"):
        await ask(shop, settle(queries, "evt-1", happened=True, reason="x"))
    assert mailer.is_queued()


async def test_an_id_of_two_consumers_must_be_named(shop: Shop) -> None:
    await parked(shop)
    effect = shop.table("effect")
    shop.rows(
        f"INSERT INTO {effect} (consumer, source, message_id, token, key, request, state, first_started, started) "
        f"SELECT 'other', source, message_id, token, key, request, state, first_started, started FROM {effect}"
    )
    with pytest.raises(
        UsageError, match=r"2 open effects; name one of: --consumer mailer .*--consumer other"
    ):
        await ask(shop, settle(shop.app.database.queries, "evt-1", happened=True, reason="x"))


async def test_status_counts_what_goes_out(shop: Shop) -> None:
    await parked(shop, "a", "b")
    put(shop, "out-1", "out-2")
    put(shop, "out-3")
    shop.rows(f"UPDATE {shop.table('outbox')} SET state = 2 WHERE id = 'out-3'")
    report = await ask(shop, read_status(shop.app.database.queries))
    assert (report.outbox.waiting, report.outbox.parked, report.effects) == (2, 1, {"parked": 2})
    assert report.outbox.oldest_seconds is not None


@pytest.mark.timeout(300)
@on("sqlite", "psycopg")
async def test_the_commands(shop: Shop, tmp_path: Path) -> None:
    mailer = await parked(shop, "a", "b")
    put(shop, "out-1")
    where = ("--database", shop._url)
    listed = oncebox("effects", "list", *where, "--json", cwd=tmp_path).json()
    assert [each["id"] for each in listed["effects"]] == ["a", "b"]
    assert "parked" in oncebox("effects", "list", *where, cwd=tmp_path).out
    refusals: list[tuple[tuple[str, ...], str]] = [
        (("a",), "--happened or --did-not"),
        (("a", "--happened"), "say how you know: --reason"),
        (("a", "--did-not", "--reason", "x", "--result", "1"), "--result goes with --happened"),
        (("a", "--happened", "--reason", "x", "--result", "{"), "--result is not JSON"),
        (("nobody", "--happened", "--reason", "x"), "no effect of id 'nobody'"),
    ]
    # What is refused is refused before the database is asked: one of them is enough.
    for words, text in refusals if shop.kind.engine == "sqlite" else refusals[-1:]:
        refused = oncebox("effects", "settle", *words, *where, cwd=tmp_path)
        assert refused.code == 2
        assert text in refused.err
    status = oncebox("status", *where, cwd=tmp_path).out
    assert "outbox: 1 waiting, oldest" in status
    assert "2 parked (oncebox effects list)" in status
    happened = ("a", "--happened", "--reason", "seen", "--result", '{"r": 1}')
    done = oncebox("effects", "settle", *happened, *where, "--json", cwd=tmp_path)
    assert json.loads(done.out)["state"] == "done", done.err
    said = oncebox("effects", "settle", "b", "--did-not", "--reason", "no key", *where, cwd=tmp_path)
    assert "back in the queue" in said.out, said.err
    assert (mailer.effect("a"), mailer.effect("b")) == (("done", 1), ("failed", 1))
    assert "No call is unknown." in oncebox("effects", "list", *where, cwd=tmp_path).out


async def test_discarding_its_dead_message_leaves_no_call_open(shop: Shop) -> None:
    mailer = await parked(shop, "evt-1", "evt-2")
    queries = shop.app.database.queries
    act = Act(verb="dead discard", who="me", reason="the order was cancelled")
    [gone] = await ask(shop, decide(queries, "discard", Choice(ids=("evt-1",)), act))
    assert gone.reason == "unknown effect"
    assert [each.id for each in await ask(shop, open_effects(queries))] == ["evt-2"]
    note = shop.rows(f"SELECT state, note FROM {shop.table('effect')} WHERE message_id = 'evt-1'")
    assert note == [("discarded", "the order was cancelled")]
    assert len(mailer.provider.calls) == 2
