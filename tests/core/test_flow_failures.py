"""The inline flow by hand when something fails: who is charged, what is recorded, what gets out."""

import asyncio
import contextlib
from typing import Any

import pytest

from oncebox import Backoff, errors
from oncebox.core.failure import RERUNS_MAX
from oncebox.core.inline import stream
from oncebox.core.outcomes import Answer, Reason, Status
from oncebox.core.place import Place
from oncebox.core.steps import Begin, Commit, Execute, Fetch, Handle, Next, Rollback, Settle, Side
from oncebox.core.watermarked import deliver_in_partition
from oncebox.core.work import Item, Work
from tests.core.flows import item, known, work
from tests.core.stepping import Stepped, play, script_of


def after_failing(
    error: BaseException, rest: list[tuple[type, object]], **policy: Any
) -> tuple[Item, list[str]]:
    """The steps after a handler raised `error`, and the item they were about."""
    one = item()
    flow = play(
        stream(work(**policy), one),
        [(Begin, 1), (Handle, error), (Rollback, None), (Begin, 1), *rest, (Next, None), (Settle, None)],
    )
    return one, script_of(flow.steps)


def test_a_failure_is_rolled_back_before_it_is_recorded() -> None:
    one, steps = after_failing(ValueError("no"), [(Fetch, [(1, 0)]), (Commit, 0)])
    assert steps[1:6] == ["Handle", "Rollback", "Begin(record_attempt)", "Fetch(count_attempts)", "Commit"]
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.answer) == (Status.RETRY, Answer.NACK)


def test_a_retry_keeps_no_claim_so_that_the_next_delivery_is_new() -> None:
    _, steps = after_failing(ValueError("no"), [(Fetch, [(1, 0)]), (Commit, 0)])
    assert not any("claim" in step or "bury" in step for step in steps[3:])


def test_the_delay_is_drawn_under_the_backoffs_ceiling() -> None:
    for attempt, ceiling in ((1, 2.0), (2, 6.0), (3, 18.0), (4, 20.0)):
        one, _ = after_failing(
            ValueError("no"),
            [(Fetch, [(attempt, 0)]), (Commit, 0)],
            retry=Backoff(attempts=9, base_seconds=2, factor=3, max_seconds=20),
        )
        assert one.outcome is not None
        assert 0 <= one.outcome.delay_seconds <= ceiling


def test_a_handler_may_name_its_own_delay() -> None:
    one, _ = after_failing(errors.Retry("later", after=77), [(Fetch, [(1, 0)]), (Commit, 0)])
    assert one.outcome is not None
    assert one.outcome.delay_seconds == 77


@pytest.mark.parametrize(
    ("error", "attempts", "reason"),
    [
        (ValueError("no"), 3, Reason.EXHAUSTED),
        (errors.Retry("again", after=1), 3, Reason.EXHAUSTED),
        (KeyError("sku"), 1, Reason.TERMINAL),
        (errors.Dead("fraud"), 1, Reason.TERMINAL),
        (errors.UndecodablePayload("not JSON"), 1, Reason.UNDECODABLE),
        (errors.TransactionEnded("it committed"), 1, Reason.TERMINAL),
        (errors.UsageError("wrong"), 1, Reason.TERMINAL),
    ],
)
def test_what_is_not_tried_again_is_claimed_and_buried_together(
    error: BaseException, attempts: int, reason: Reason
) -> None:
    one, steps = after_failing(
        error, [(Fetch, [(attempts, 0)]), (Execute, 1), (Commit, 0)], terminal=(KeyError,)
    )
    assert steps[5:7] == ["Execute(claim)", "Commit(bury)"]
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.reason) == (Status.DEAD, reason)
    assert one.outcome.error is error


@pytest.mark.parametrize("spills", [False, True])
def test_a_refused_message_whose_burial_failed_is_buried_for_the_same_reason_and_never_queued(
    spills: bool,
) -> None:
    one, refused = item(), errors.UsageError("no handler")
    one.refusal = (Reason.UNKNOWN_TYPE, refused)
    side = work()
    side.spills = spills
    flow = play(
        stream(side, one),
        [
            (Begin, 1), (Commit, errors.DatabaseError("disk full")), (Rollback, None),
            (Begin, 1), (Fetch, [(1, 0)]), (Execute, 1), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[3:7] == [
        "Begin(record_attempt)", "Fetch(count_attempts)", "Execute(claim)", "Commit(bury)",
    ]  # fmt: skip
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.reason) == (Status.DEAD, Reason.UNKNOWN_TYPE)
    assert one.outcome.error is refused


def test_a_discarded_message_is_claimed_as_such_and_not_buried() -> None:
    one, steps = after_failing(errors.Discard("a test order"), [(Fetch, [(1, 0)]), (Execute, 1), (Commit, 0)])
    assert steps[5:7] == ["Execute(claim)", "Commit"]
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.reason) == (Status.DISCARDED, "a test order")


def test_a_verdict_steps_back_for_a_delivery_that_came_through_meanwhile() -> None:
    for found, status in (([known(item())], Status.DUPLICATE), ([], Status.RETRY)):
        one, steps = after_failing(
            errors.Dead("fraud"), [(Fetch, [(1, 0)]), (Execute, 0), (Fetch, found), (Rollback, None)]
        )
        assert "Commit(bury)" not in steps
        assert one.outcome is not None
        assert one.outcome.status is status


@pytest.mark.parametrize(
    "rest",
    [
        [(Begin, 1), (Fetch, [(1, 0)]), (Execute, 0), (Fetch, [])],
        [(Begin, errors.LockBusy("55P03"))],
        [(Begin, 1), (Fetch, errors.Conflict("40001"))],
    ],
    ids=["came through", "busy", "conflict"],
)
def test_a_suspect_whose_failure_is_not_recorded_leaves_no_marker_behind(
    rest: list[tuple[type, object]],
) -> None:
    start: list[tuple[type, object]] = [(Begin, 1), (Fetch, [(0, 0)]), (Side, [(0,)])]
    failing: list[tuple[type, object]] = [(Handle, errors.Dead("fraud")), (Rollback, None)]
    end: list[tuple[type, object]] = [(Rollback, None), (Side, None), (Next, None), (Settle, None)]
    flow = play(stream(work(), item(deliveries=2)), [*start, *failing, *rest, *end])
    assert script_of(flow.steps)[-3] == "Side(withdraw)"


def test_nor_does_one_whose_duplicates_a_watermark_tells() -> None:
    one = item(deliveries=2)
    one.place = Place("clicks", 0, 5, 4, raw=b"5")
    flow = play(
        deliver_in_partition(work(), [one]),
        [
            (Begin, 1), (Fetch, None), (Fetch, [(0, 0)]), (Side, [(0,)]), (Handle, errors.Dead("no")), (Rollback, None),
            (Begin, errors.LockBusy("55P03")), (Rollback, None), (Side, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[-2] == "Side(withdraw)"


def test_two_writers_of_one_attempt_number_ask_again() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [
            (Begin, 1), (Handle, ValueError("no")), (Rollback, None),
            (Begin, 0), (Execute, 0), (Execute, 1), (Fetch, [(2, 0)]), (Commit, 0),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[4:6] == ["Execute(record_attempt)"] * 2


def test_conflicts_run_again_uncharged_and_are_charged_when_there_are_too_many() -> None:
    one = item()
    conflict = errors.Conflict("deadlock")
    turn: list[tuple[type, object]] = [(Begin, 1), (Handle, conflict), (Rollback, None)]
    flow = play(
        stream(work(), one),
        [*turn * (RERUNS_MAX + 1), (Begin, 1), (Fetch, [(1, 0)]), (Commit, 0), (Next, None), (Settle, None)],
    )
    steps = script_of(flow.steps)
    assert RERUNS_MAX == 10
    assert steps.count("Handle") == 11
    assert steps.count("Begin(record_attempt)") == 1
    assert one.outcome is not None
    assert one.outcome.status is Status.RETRY


def test_a_conflict_at_commit_runs_again_too() -> None:
    one = item()
    play(
        stream(work(), one),
        [
            (Begin, 1), (Handle, None), (Next, None), (Commit, errors.Conflict("serialization")), (Rollback, None),
            (Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert one.outcome is not None
    assert one.outcome.status is Status.PROCESSED


def test_a_lock_timeout_in_the_handlers_own_statement_is_charged() -> None:
    one, steps = after_failing(errors.LockBusy("55P03"), [(Fetch, [(1, 0)]), (Commit, 0)])
    assert "Begin(record_attempt)" in steps
    assert one.outcome is not None
    assert one.outcome.status is Status.RETRY


OUT = [
    errors.DatabaseUnavailable("gone"),
    errors.CommitUnknown("gone during COMMIT"),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", OUT, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", ["Begin", "Handle", "Commit"])
def test_a_lost_database_and_a_cancellation_get_out_rolled_back_uncharged_and_unsettled(
    error: BaseException, at: str
) -> None:
    one = item()
    flow = Stepped(stream(work(), one))
    for kind, reply in ((Begin, 1), (Handle, None), (Next, None), (Commit, 0)):
        flow.expect(kind)
        if kind.__name__ == at:
            break
        flow.reply(reply)
    flow.reply(error)
    flow.expect(Rollback)
    with pytest.raises(type(error)):
        flow.reply(None)
    steps = script_of(flow.steps)
    assert "Settle" not in steps
    assert "Begin(record_attempt)" not in steps
    assert one.outcome is None


def test_a_cancelled_suspect_takes_its_marker_back_after_its_locks_are_gone() -> None:
    flow = Stepped(stream(work(), item(deliveries=2)))
    for reply in (1, [(0, 0)], [(0,)], asyncio.CancelledError(), None):
        flow.reply(reply)
    assert script_of(flow.steps)[-2:] == ["Rollback", "Side(withdraw)"]
    with pytest.raises(asyncio.CancelledError):
        flow.reply(None)


def test_a_suspect_at_its_limit_is_a_crash_loop_and_does_not_run() -> None:
    one = item(deliveries=5)
    flow = play(
        stream(work(crash_limit=3), one),
        [(Begin, 1), (Fetch, [(1, 3)]), (Commit, 0), (Next, None), (Settle, None)],
    )
    assert script_of(flow.steps)[2] == "Commit(bury)"
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.reason) == (Status.DEAD, Reason.CRASH_LOOP)


def test_the_first_death_which_was_not_marked_is_counted_once_a_second_is_known() -> None:
    # Two deaths on record, four deliveries before this one, one failure: the first start died too.
    one = item(deliveries=5)
    play(
        stream(work(crash_limit=3), one),
        [(Begin, 1), (Fetch, [(1, 2)]), (Commit, 0), (Next, None), (Settle, None)],
    )
    assert one.outcome is not None
    assert one.outcome.reason == Reason.CRASH_LOOP


def test_what_has_not_died_alone_is_no_crash_loop_yet() -> None:
    one = item(deliveries=3)
    play(
        stream(work(crash_limit=2), one),
        [
            (Begin, 1), (Fetch, [(0, 1)]), (Side, [(0,)]), (Handle, None), (Next, None), (Commit, 0),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert one.outcome is not None
    assert one.outcome.status is Status.PROCESSED


def test_a_suspect_that_another_workers_marker_names_is_left_in_flight() -> None:
    one = item(deliveries=2)
    play(
        stream(work(), one),
        [
            (Begin, 1), (Fetch, [(0, 0)]), (Side, []), (Rollback, None),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert one.outcome is not None
    assert one.outcome.status is Status.IN_FLIGHT


def test_where_there_is_one_writer_a_suspect_is_marked_before_the_transaction() -> None:
    one = item(deliveries=2)
    flow = play(
        stream(work("sqlite"), one),
        [
            (Fetch, [(0, 0)]), (Side, [(0,)]), (Begin, 1), (Fetch, [(0, 0)]), (Handle, None), (Next, None), (Commit, 0),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[1] == "Side(mark_inline)"


def test_a_failing_suspect_withdraws_its_marker_with_its_record() -> None:
    flow = play(
        stream(work(), item(deliveries=2)),
        [
            (Begin, 1), (Fetch, [(0, 0)]), (Side, [(0,)]), (Handle, ValueError("no")), (Rollback, None),
            (Begin, 1), (Fetch, [(1, 0)]), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[7] == "Commit(withdraw)"


def test_a_duplicate_suspect_withdraws_its_marker() -> None:
    one = item(deliveries=2)
    flow = play(
        stream(work("sqlite"), one),
        [
            (Fetch, [(0, 0)]), (Side, [(0,)]), (Begin, 0), (Fetch, [known(one)]), (Rollback, None), (Side, None),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[5] == "Side(withdraw)"


def in_company(dialect: str) -> tuple[Work, Work]:
    """Two workers of one process."""
    first, second = work(dialect), work(dialect)
    second.alone = first.alone
    return first, second


STARTED: dict[str, list[object]] = {
    "postgresql": [1, [(0, 1)], [(0,)]],
    "sqlite": [[(0, 1)], [(0,)], 1, [(0, 1)]],
}
"""The replies that bring a suspect with one death to its handler."""


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    "end", [None, ValueError("no"), asyncio.CancelledError()], ids=["done", "failed", "cut"]
)
def test_what_processes_have_died_of_runs_alone(dialect: str, end: BaseException | None) -> None:
    first, second = in_company(dialect)
    holding = Stepped(stream(first, item("killer", deliveries=3)))
    for reply in STARTED[dialect]:
        holding.reply(reply)
    holding.expect(Handle)

    one = item("good", deliveries=3)
    off = (
        [(Begin, 1), (Fetch, [(0, 1)]), (Rollback, None)] if dialect == "postgresql" else [(Fetch, [(0, 1)])]
    )
    flow = play(stream(second, one), [*off, (Next, None), (Settle, None)])
    assert not any("mark_inline" in step for step in script_of(flow.steps)), (
        "no death can be counted against it"
    )
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.delay_seconds) == (Status.IN_FLIGHT, 5.0)

    once = Stepped(stream(second, item("redelivered", deliveries=2)))
    for reply in [1, [(0, 0)], [(0,)]] if dialect == "postgresql" else [[(0, 0)], [(0,)], 1, [(0, 0)]]:
        once.reply(reply)
    once.expect(Handle)  # nobody has died of it

    with contextlib.suppress(asyncio.CancelledError):
        holding.reply(end)
        while not isinstance(holding.step, Settle):
            counts = isinstance(holding.step, Fetch)
            holding.reply([(1, 1)] if counts else None if isinstance(holding.step, Next) else 1)
    again = Stepped(stream(second, item("good", deliveries=4)))
    for reply in STARTED[dialect]:
        again.reply(reply)
    again.expect(Handle)
