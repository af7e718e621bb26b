"""Replay: what was handled is handled again, once per run, and never beside its live first delivery."""

import msgspec
import pytest

from oncebox import Consumer, Discard, Message, Status
from oncebox.brokers.memory import Memory
from oncebox.core.replay import replay
from oncebox.core.replay_terms import Chosen, Run
from oncebox.core.replaying import Placed
from oncebox.errors import ReplayFailed, UsageError
from oncebox.replay import replay as replay_now
from oncebox.replay import replay_async, shadow, shadow_async
from tests.core.fixtures import inline, on, stored
from tests.core.kit import Call, Shop, effect, event
from tests.operate.replays import again, events, handled, of_file, order, projection, resets
from tests.order.lines import BY_SEQUENCE, applied, case, note, put


async def test_a_rebuild_handles_what_is_kept_once_more_and_marks_it(shop: Shop) -> None:
    page = projection(shop, batch=2)
    await handled(shop, page, events(5))
    run = await again(shop, page)
    assert (run.handled, run.skipped, run.failed, run.ended) == (5, 0, 0, "done")
    assert shop.notes()[5:] == [f"{n} again" for n in range(5)], "in the order in which they took effect"
    assert shop.count("kept") == shop.count("ledger") == 5
    assert (await shop.deliver(page, events(1)[0])).status is Status.DUPLICATE


async def test_a_reset_goes_with_what_is_replayed(shop: Shop) -> None:
    page = projection(shop)
    resets(shop, page)
    await handled(shop, page, events(3))
    shop.rows("INSERT INTO shop_effect (key, note) VALUES ('stray', '')")
    await again(shop, page)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}


@inline
async def test_each_run_is_its_own(shop: Shop) -> None:
    page = projection(shop)
    await handled(shop, page, events(2))
    for _ in range(2):
        await again(shop, page)
    assert shop.effects() == {"evt-0": 3, "evt-1": 3}
    rows = shop.rows(f"SELECT verb, who, reason, consumer, result FROM {shop.table('audit')} ORDER BY seq")
    assert rows == [
        ("replay", "me", "new column", "page", result)
        for result in ("begun", "done: 2 handled, 0 skipped, 0 failed, 0 suppressed") * 2
    ]


@inline
async def test_filters_choose(shop: Shop) -> None:
    page = projection(shop)
    await shop.settle(page, event("a", type="paid", payload={}, key="k1", source="s1"))
    await shop.settle(page, event("b", type="sent", payload={}, key="k2", source="s2"))
    later = float(shop.rows(NOW[shop.kind.engine])[0][0]) + 60
    for chosen, wanted in (
        (Chosen(ids=("a",)), {"a"}),
        (Chosen(type="sent"), {"b"}),
        (Chosen(key="k1"), {"a"}),
        (Chosen(source="s2"), {"b"}),
        (Chosen(since=later), set()),
        (Chosen(until=later), {"a", "b"}),
        (Chosen(until=later - 3600), set()),
    ):
        shop.rows("DELETE FROM shop_effect")
        await again(shop, page, chosen=chosen)
        assert shop.effects().keys() == wanted, chosen


NOW = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM now())::float8",
}


@inline
async def test_policy_forbids_unless_it_is_said_otherwise(shop: Shop) -> None:
    page = shop.consumer("page", keep_payload="always")
    shop.handler(page)(effect)
    await shop.settle(page, event())
    with pytest.raises(UsageError, match='replay="forbid": set replay="rebuild"'):
        await again(shop, page)
    assert shop.effects() == {"evt-1": 1}


@inline
async def test_nothing_kept_names_the_word(shop: Shop) -> None:
    page = projection(shop, keep_payload="until_done")
    await shop.settle(page, event())
    with pytest.raises(UsageError, match='set keep_payload="always"'):
        await again(shop, page)


async def test_suppressed_sends_are_counted_and_not_made(shop: Shop) -> None:
    shop.app.sinks = (("*", Memory().topic("t")),)
    page = shop.consumer("page", keep_payload="always", replay="suppress_effects")
    mailer = shop.consumer("mailer", mode="stored")
    shop.handler(mailer)(effect)

    @shop.handler(page)
    async def tells(call: Call) -> None:
        await effect(call)
        call.tx.send("mailer", "mail", {})
        call.tx.publish("told", {})

    await handled(shop, page, events(2))
    assert (shop.count("outbox"), len(shop.rows(f"SELECT 1 FROM {shop.table('queue')}"))) == (2, 2)
    run = await again(shop, page)
    assert (run.handled, run.suppressed) == (2, 4)
    assert (shop.count("outbox"), shop.count("queue")) == (2, 2)
    assert shop.effects() == {"evt-0": 2, "evt-1": 2}, "what it writes is written again"
    counted = shop.rows(f"SELECT sum(n) FROM {shop.table('tally')} WHERE outcome = 'suppressed'")
    assert int(counted[0][0]) == 2


@inline
async def test_a_rebuild_sends_again_under_the_same_ids(shop: Shop) -> None:
    page = shop.consumer("page", keep_payload="always", replay="rebuild")
    mailer = shop.consumer("mailer", mode="stored")
    shop.handler(mailer)(effect)

    @shop.handler(page)
    async def tells(call: Call) -> None:
        call.tx.send("mailer", "mail", {})

    await handled(shop, page, events(2))
    await shop.work_off(mailer)
    await again(shop, page)
    assert shop.count("queue") == shop.count("dead") == 0, "the mailer knows them already"


@stored
async def test_calls_to_the_outside_are_left_out_or_refused(shop: Shop) -> None:
    called: list[str] = []

    mailer = shop.consumer("mailer", keep_payload="always", replay="suppress_effects")
    careless = shop.consumer("careless", keep_payload="always", replay="rebuild")
    for consumer in (mailer, careless):
        calls(shop, consumer, called)
        shop.handler(consumer, "paid")(effect)
        await shop.settle(consumer, event("evt-1"))
        keep_call(shop, consumer)
    run = await again(shop, mailer)
    assert (run.handled, run.suppressed, called) == (1, 1, [])
    with pytest.raises(UsageError, match="calls the outside world"):
        await again(shop, careless)
    assert (await again(shop, careless, chosen=Chosen(type="paid"))).handled == 1


def calls(shop: Shop, consumer: Consumer, called: list[str]) -> None:
    """An effect, as this kind of driver wants it."""

    async def waiting(message: Message) -> None:
        called.append(message.id)

    def blocking(message: Message) -> None:
        called.append(message.id)

    consumer.effect("mail")(waiting if shop.kind.is_async else blocking)


def keep_call(shop: Shop, consumer: Consumer) -> None:
    """As if the call had been made, and its message been kept."""
    ledger, kept = shop.table("ledger"), shop.table("kept")
    shop.rows(
        f"INSERT INTO {ledger} (consumer, source, message_id, type, fingerprint, received, finished) SELECT consumer, "
        f"source, 'call', 'mail', fingerprint, received, received FROM {ledger} WHERE consumer = ?", consumer.name,
    )  # fmt: skip
    shop.rows(
        f"INSERT INTO {kept} (consumer, source, message_id, payload, headers, content_type, provenance) "
        f"SELECT consumer, source, 'call', payload, headers, content_type, provenance FROM {kept} WHERE consumer = ?",
        consumer.name,
    )  # fmt: skip


async def test_a_failure_stops_right_before_it_and_the_same_command_goes_on(shop: Shop) -> None:
    page, broken = shop.consumer("page", keep_payload="always", replay="rebuild", batch=3), [False]

    @shop.handler(page)
    async def fails(call: Call) -> None:
        await effect(call)
        if broken[0] and call.message.id == "evt-4":
            raise ValueError("canary-secret")

    await handled(shop, page, events(6))
    shop.rows("DELETE FROM shop_effect")
    broken[0] = True
    with pytest.raises(ReplayFailed, match="id 'evt-4': ValueError in a replay") as caught:
        await again(shop, page)
    assert "canary" not in str(caught.value)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(4)}
    broken[0] = False
    run = await again(shop, page)
    assert (run.resumed, run.handled) == (True, 6)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(6)}


@inline
async def test_failures_can_be_passed_over_and_are_on_record(shop: Shop) -> None:
    page, broken = shop.consumer("page", keep_payload="always", replay="rebuild", batch=2), [False]

    @shop.handler(page)
    async def fails(call: Call) -> None:
        await effect(call)
        if broken[0] and call.message.id in ("evt-1", "evt-4"):
            raise Discard("no more") if call.message.id == "evt-4" else ValueError("no")

    await handled(shop, page, events(5))
    broken[0] = True
    shop.rows("DELETE FROM shop_effect")
    run = await again(shop, page, skip_failures=True)
    assert (run.handled, run.failed, run.skipped) == (3, 1, 1)
    assert shop.effects().keys() == {"evt-0", "evt-2", "evt-3"}
    found = shop.rows(
        f"SELECT message_id, result FROM {shop.table('audit')} WHERE message_id IN ('evt-1', 'evt-4')"
    )
    assert found == [("evt-1", "failed: ValueError")]


@inline
async def test_a_list_handler_that_ends_its_transaction_ends_the_replay(shop: Shop) -> None:
    page = shop.consumer("page", batch=10, keep_payload="always", replay="rebuild")
    misdeeds: list[str] = []

    @shop.batch_handler(page)
    async def ends_it_once(call: Call) -> None:
        for message in call.message:
            await call.db.effect(message.id)
        if call.message[0].replay and not misdeeds:
            misdeeds.append(call.message[0].id)
            await call.db.run("COMMIT")

    await handled(shop, page, events(3))
    with pytest.raises(ReplayFailed, match="ids 'evt-0' to 'evt-2': their handler ended its transaction"):
        await again(shop, page, skip_failures=True)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(3)}
    run = await again(shop, page, skip_failures=True)
    assert (run.handled, run.failed, run.ended) == (3, 0, "done")
    assert shop.effects() == {f"evt-{n}": 2 for n in range(3)}


@inline
async def test_another_command_does_not_take_over_an_open_run(shop: Shop) -> None:
    page = projection(shop)
    await handled(shop, page, events(3))
    asked = order(page)
    stop = iter([False, True])
    run = await shop.perform(page, lambda work: replay(work, asked, stopping=lambda: next(stop, True)))
    assert (run.ended, run.handled) == ("stopped", 1)
    with pytest.raises(UsageError, match=f"run {run.id} is not at its end"):
        await again(shop, page, chosen=Chosen(type="paid"))
    other = await again(shop, page, restart=True)
    assert (other.handled, other.id != run.id) == (3, True)
    results = shop.rows(f"SELECT run, result FROM {shop.table('replay')} ORDER BY started")
    assert results == [(run.id, "abandoned"), (other.id, "done")]


async def test_what_is_finished_after_the_beginning_is_not_covered(shop: Shop) -> None:
    page = projection(shop)
    resets(shop, page)
    await handled(shop, page, events(3))
    begun = await shop.perform(page, lambda work: replay(work, order(page), stopping=lambda: True))
    assert shop.effects() == {}
    await handled(shop, page, events(2, start=3))
    run = await again(shop, page)
    assert (run.id, run.handled) == (begun.id, 3)
    assert shop.effects() == {f"evt-{n}": 1 for n in range(5)}


async def test_a_file_is_taken_once_whatever_the_ledger_knows_of_it(shop: Shop) -> None:
    page = projection(shop)
    await handled(shop, page, events(2))
    shop.rows("DELETE FROM shop_effect")
    messages = [*events(3), *events(3)]
    run = await again(shop, page, of_file(page, *messages))
    assert (run.handled, shop.effects()) == (3, {"evt-0": 1, "evt-1": 1, "evt-2": 1})
    assert (await shop.deliver(page, events(3)[2])).status is Status.DUPLICATE, (
        "a live delivery comes too late"
    )
    assert shop.count("kept") == 3


async def test_a_file_leaves_alone_what_is_live(shop: Shop) -> None:
    page = projection(shop)
    messages = events(4)
    await handled(shop, page, messages[:1])
    begun = of_file(page, *messages)
    await shop.perform(page, lambda work: replay(work, begun, stopping=lambda: True))
    await handled(shop, page, messages[1:2])
    if shop.mode == "stored":
        await shop.deliver(page, messages[2])
    shop.rows("DELETE FROM shop_effect")
    run = await again(shop, page, of_file(page, *messages))
    waits = shop.mode == "stored"
    assert (run.handled, run.skipped) == (2 if waits else 3, 2 if waits else 1)
    assert "evt-1" not in shop.effects(), "it was finished since the run began"
    await shop.work_off(page)
    assert shop.effects() == {"evt-0": 1, "evt-2": 1, "evt-3": 1}


@inline
async def test_a_file_needs_to_know_what_is_finished_meanwhile(shop: Shop) -> None:
    page = projection(shop, keep_payload="until_done")
    with pytest.raises(UsageError, match="--stopped"):
        await again(shop, page, of_file(page, *events(1)))
    assert (await again(shop, page, of_file(page, *events(1), stopped=True))).handled == 1


@inline
async def test_another_file_is_not_gone_on_with(shop: Shop) -> None:
    page = projection(shop)
    begun, stop = of_file(page, *events(3)), iter([False, True])
    await shop.perform(page, lambda work: replay(work, begun, stopping=lambda: next(stop, True)))
    with pytest.raises(UsageError, match="another file"):
        await again(shop, page, of_file(page, *events(3, start=7)))
    assert (await again(shop, page, of_file(page, *events(3)))).handled == 3


@inline
async def test_a_process_that_is_overtaken_by_another_stops(shop: Shop) -> None:
    page = projection(shop)
    await handled(shop, page, events(3))
    shop.rows("DELETE FROM shop_effect")

    def overtake(run: Run) -> None:
        shop.rows(f"UPDATE {shop.table('replay')} SET place = place + 1")

    with pytest.raises(UsageError, match="another process goes on"):
        await shop.perform(page, lambda work: replay(work, order(page), progress=overtake))
    assert shop.effects() == {}


@inline
@on("psycopg", "asyncpg")
async def test_from_code(shop: Shop) -> None:
    page = projection(shop)
    resets(shop, page)
    await handled(shop, page, events(2))
    if shop.kind.is_async:
        seen = await shadow_async(page, chosen=Chosen(type="paid"))
        run = await replay_async(page, reason="new column", by="ann", reset=True)
    else:
        seen = await shop.in_thread(lambda: shadow(page, chosen=Chosen(type="paid")))
        run = await shop.in_thread(lambda: replay_now(page, reason="new column", by="ann", reset=True))
    assert (seen.messages, seen.tables["public.shop_effect"].inserted, run.handled) == (2, 2, 2)
    assert shop.effects() == {"evt-0": 1, "evt-1": 1}
    with pytest.raises(UsageError, match="say why"):
        await replay_async(page, reason=" ", reset=True)
    with pytest.raises(UsageError, match="Say --reset or --no-reset"):
        await replay_async(page, reason="not said whether it is emptied")


@inline
async def test_what_is_archived_and_what_is_kept_come_in_one_order(shop: Shop) -> None:
    page = projection(shop)
    resets(shop, page)
    await handled(shop, page, events(6))
    archived = [
        Placed(row[0], page.intake.from_message(msgspec.structs.replace(events(6)[n], replay=True)))
        for n, row in enumerate(shop.rows(f"SELECT seq FROM {shop.table('kept')} ORDER BY seq"))
        if n in (0, 2, 3)
    ]
    # 0 and 3 are gone from here, 2 was archived and not yet deleted.
    for name in ("kept", "ledger"):
        shop.rows(f"DELETE FROM {shop.table(name)} WHERE message_id IN ('evt-0', 'evt-3')")
    foreign = [Placed(10**9, archived[0].item)]
    with pytest.raises(UsageError, match="another database's"):
        await again(shop, page, order(page, origin="archive", archived=iter(foreign)))
    run = await again(shop, page, order(page, origin="archive", archived=iter(archived)))
    assert run.handled == 6
    assert shop.notes() == [f"{n} again" for n in range(6)]


@stored
async def test_ordered_messages_are_replayed_in_their_order(shop: Shop) -> None:
    consumer = shop.consumer(**BY_SEQUENCE, keep_payload="always", replay="rebuild")
    shop.handler(consumer)(note)
    await put(shop, consumer, case("a", 2), case("b", 1), case("a", 1), case("a", 3))
    assert applied(shop, "a") == [1, 2, 3]
    shop.rows("DELETE FROM shop_line")
    await again(shop, consumer)
    assert applied(shop, "a") == [1, 2, 3]
    run = await again(shop, consumer, chosen=Chosen(key="b"))
    assert (run.handled, applied(shop, "b")) == (1, [1, 1])
