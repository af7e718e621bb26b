"""The relay's flow by hand, and on real databases with a kill before and after every step."""

from typing import Any

from oncebox.core.outgoing import SLOTS
from oncebox.core.relay import AWAY_SECONDS_MAX, MARK_MAX, Relaying, heads, send, take
from oncebox.core.run import run_async
from oncebox.core.steps import Op, Publish, Side, Step
from oncebox.engines.queries import load
from oncebox.errors import BrokerError, BrokerUnavailable
from tests.core.fixtures import stored
from tests.core.kit import Shop
from tests.core.stepping import Stepped, script_of
from tests.outgoing.abandon import Abandoned
from tests.outgoing.kit import ScriptedSink, outbox_ids, put, relay, until


def row(seq: int, key: str | None = None, *, attempts: int = 0, lazy: bool = False) -> tuple[Any, ...]:
    return (seq, f"m{seq}", "shop", "paid", None, key, b"{}", b"", "application/json", attempts, lazy)


def flow(made: Relaying, *, keeps_order: bool = False) -> Op[int]:
    """What a relay with one sink does in a turn."""
    rows = yield from take(made)
    yield from send(made, rows, keeps_order=keeps_order)
    return len(rows)


def relaying(**words: Any) -> Relaying:
    made = Relaying(load("postgresql"), "r1", **words)
    made.slots = list(range(SLOTS))
    return made


def played(
    made: Relaying, rows: list[tuple[Any, ...]], *answers: Any, keeps_order: bool = False
) -> Stepped[int]:
    stepped = Stepped(flow(made, keeps_order=keeps_order))
    replies = list(answers)
    while not stepped.finished:
        step = stepped.step
        if isinstance(step, Publish):
            stepped.reply(replies.pop(0))
        else:
            asked = stepped.expect(Side).call.query.name
            stepped.reply(rows if asked == "outbox_take" else [])
    return stepped


def sent(stepped: Stepped[int]) -> list[list[int]]:
    return [[out.seq for out in step.outgoing] for step in stepped.steps if isinstance(step, Publish)]


def test_without_slots_it_asks_nothing() -> None:
    made = relaying()
    made.slots = []
    assert Stepped(flow(made)).value == 0


def test_one_of_a_key_is_out_at_a_time() -> None:
    rows = [row(1, "a"), row(2, "a"), row(3, "b"), row(4), row(5)]
    stepped = played(relaying(), rows, [None] * 4, [None])
    assert sent(stepped) == [[1, 3, 4, 5], [2]]
    assert script_of(stepped.steps) == ["Side(outbox_take)", "Publish", "Publish", "Side(outbox_drop)"]


def test_what_was_confirmed_is_marked_together_but_does_not_wait_for_long() -> None:
    now = iter([0.0, 0.1, 0.25, 0.25, 0.3, 0.3])
    stepped = played(relaying(monotonic=lambda: next(now)), [row(n, "a") for n in range(1, 5)], *[[None]] * 4)
    marked = [step.call.params["seqs"] for step in stepped.steps[1:] if isinstance(step, Side)]
    assert marked == [[1, 2], [3, 4]]
    many = [row(n) for n in range(MARK_MAX)] + [row(MARK_MAX, "k"), row(MARK_MAX + 1, "k")]
    stepped = played(relaying(monotonic=lambda: 0.0), many, [None] * (MARK_MAX + 1), [None])
    marked = [step.call.params["seqs"] for step in stepped.steps[1:] if isinstance(step, Side)]
    assert [len(seqs) for seqs in marked] == [MARK_MAX + 1, 1]


def test_a_sink_that_keeps_order_gets_them_all() -> None:
    rows = [row(1, "a"), row(2, "a"), row(3, "b")]
    assert sent(played(relaying(), rows, [None] * 3, keeps_order=True)) == [[1, 2, 3]]


def test_a_key_that_failed_waits_and_only_what_was_confirmed_is_marked() -> None:
    stepped = played(
        relaying(), [row(1, "a"), row(2, "a"), row(3, "b"), row(4, "b")], [BrokerError("no"), None], [None]
    )
    assert sent(stepped) == [[1, 3], [4]]
    marked = [
        (step.call.query.name, step.call.params["seqs"])
        for step in stepped.steps[1:]
        if isinstance(step, Side)
    ]
    assert marked == [("outbox_fail", [1]), ("outbox_drop", [3, 4])]


def test_a_long_outage_does_not_put_a_row_off_for_long() -> None:
    made = relaying()
    answers = [BrokerUnavailable("away"), BrokerError("no")]
    stepped = played(made, [row(1, "a", attempts=18), row(2, "b", attempts=18)], answers)
    seconds = {
        tuple(step.call.params["seqs"]): step.call.params["seconds"]
        for step in stepped.steps
        if isinstance(step, Side) and step.call.query.name == "outbox_fail"
    }
    assert seconds == {(1,): AWAY_SECONDS_MAX, (2,): made.retry.max_seconds}


def test_the_last_try_parks_and_its_key_goes_on() -> None:
    stepped = played(relaying(), [row(1, "a", attempts=19), row(2, "a")], [BrokerError("no")], [None])
    assert script_of(stepped.steps) == [
        "Side(outbox_take)",
        "Publish",
        "Side(outbox_park)",
        "Publish",
        "Side(outbox_drop)",
    ]


def test_lazy_rows_are_flushed_before_they_leave() -> None:
    stepped = played(relaying(), [row(1), row(2, lazy=True)], [None, None])
    assert script_of(stepped.steps)[:3] == ["Side(outbox_take)", "Side(outbox_flush)", "Publish"]


def test_kept_rows_are_marked_and_a_short_answer_confirms_nothing() -> None:
    assert "Side(outbox_keep)" in script_of(played(relaying(keep_seconds=5), [row(1)], [None]).steps)
    short = script_of(played(relaying(), [row(1), row(2)], [None]).steps)
    assert short == ["Side(outbox_take)", "Publish", "Side(outbox_fail)"]


def test_heads_keep_order() -> None:
    assert heads([]) == ([], [])


@stored
async def test_killed_before_or_after_any_step_every_row_is_published_and_none_under_two_ids(
    shop: Shop, sink: ScriptedSink
) -> None:
    number, reached = 0, True
    async with relay(shop, sink) as it:
        await it.turn()
        (pipe,) = it.pipes.all

        def perform(step: Step) -> Any:
            return pipe.publish(step.outgoing) if isinstance(step, Publish) else it._perform(step)

        while reached:
            number += 1
            assert number < 30
            for when in ("before", "after"):
                ids = [f"{number}-{when}-{n}" for n in range(4)]
                put(shop, *ids[:2], key="k")
                put(shop, *ids[2:])
                cut = Abandoned(number, when, in_transaction=False)
                await run_async(cut(flow(it.relaying)), perform)
                reached = cut.died
                left = set(outbox_ids(shop))
                assert left | set(sink.ids) >= set(ids), "neither published nor kept: lost"

                async def drained() -> bool:
                    await it.turn()
                    return outbox_ids(shop) == []

                await until(drained)
                first = list(dict.fromkeys(id_ for id_ in sink.ids if id_ in ids))
                assert sorted(first) == sorted(ids)
                assert [id_ for id_ in first if id_ in ids[:2]] == ids[:2]
    assert number > 4
