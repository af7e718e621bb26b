"""The stored flow by hand: store and ack, then take, handle and finish in one transaction."""

import asyncio

import pytest

from oncebox import errors
from oncebox.core.batch import CHAINED_SECONDS, LOCK_MS
from oncebox.core.failure import RERUNS_MAX
from oncebox.core.outcomes import Reason, Status
from oncebox.core.receiving import receive
from oncebox.core.steps import Begin, Commit, Fetch, Handle, Restore, Rollback, Save, Settle, Side
from oncebox.core.stored import bury_unknown, work_batch
from oncebox.runtime.workers import stored_turn
from tests.core.flows import item, known, queued, ticking, work
from tests.core.stepping import Stepped, play, queries_of, script_of


def test_storing_is_one_statement_and_the_ack_comes_after_it() -> None:
    one, two = item("evt-1"), item("evt-2")
    flow = play(
        receive(work(mode="stored"), [one, two]),
        [(Fetch, [("", "evt-1"), ("", "evt-2")]), (Settle, None)],
    )
    assert script_of(flow.steps) == ["Fetch(store)", "Settle"]
    assert flow.value == []
    assert one.outcome is not None
    assert one.outcome.status is Status.STORED


def test_where_storing_takes_two_statements_they_share_a_transaction() -> None:
    flow = play(
        receive(work("sqlite", mode="stored"), [item()]),
        [(Begin, 0), (Fetch, [("", "evt-1")]), (Commit, 0), (Settle, None)],
    )
    assert script_of(flow.steps) == ["Begin", "Fetch(store)", "Commit", "Settle"]


def test_a_redelivery_is_answered_by_what_is_known_and_a_conflict_is_buried_beside_the_original() -> None:
    waiting, done, clash = item("evt-1"), item("evt-2"), item("evt-3")
    rows = [known(waiting, queued=True), known(done, body=b"9"), known(clash, fingerprint=b"other")]
    flow = play(
        receive(work(mode="stored"), [waiting, done, clash]),
        [
            (Fetch, []), (Fetch, rows), (Begin, 0), (Fetch, [(1,)]), (Commit, 0),
            (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[4]) == ["bury"]
    outcomes = [one.outcome for one in (waiting, done, clash)]
    assert [outcome and outcome.status for outcome in outcomes] == ["waiting", "duplicate", "dead"]
    assert outcomes[1] is not None
    assert outcomes[1].result == 9


def test_a_row_that_vanished_is_stored_again_and_not_acked() -> None:
    one = item()
    flow = play(receive(work(mode="stored"), [one]), [(Fetch, []), (Fetch, [])])
    assert flow.value == [one]
    assert one.outcome is None


def test_a_refused_delivery_is_claimed_and_buried_at_once() -> None:
    one = item()
    one.refusal = (Reason.TOO_LARGE, errors.TooLarge("too large"))
    flow = play(receive(work(mode="stored"), [one]), [(Begin, 1), (Commit, 0), (Settle, None)])
    assert script_of(flow.steps) == ["Begin(claim)", "Commit(bury)", "Settle"]


def test_a_store_that_failed_acks_nothing() -> None:
    flow = Stepped(receive(work(mode="stored"), [item("evt-1"), item("evt-2")]))
    with pytest.raises(errors.DatabaseUnavailable):
        flow.reply(errors.DatabaseUnavailable("gone"))
    assert script_of(flow.steps) == ["Fetch(store)"]


def test_what_is_due_is_taken_marked_handled_and_finished_in_one_transaction() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=3)),
        [
            (Begin, 1), (Fetch, [queued(1), queued(2)]), (Side, []), (Save, None), (Handle, {"n": 1}), (Handle, None),
            (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[:3] == ["Begin(fence)", "Fetch(take)", "Side(mark)"]
    assert queries_of(flow.steps[6]) == ["keep_result", "finish"]
    assert flow.value == 2


TWO: list[tuple[type, object]] = [
    (Fetch, [queued(1), queued(2)]), (Side, []), (Save, None), (Handle, None), (Handle, None),
]  # fmt: skip
SETTLED: list[tuple[type, object]] = [(Settle, None)]


def test_a_full_batchs_commit_opens_the_next_ones_transaction() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=2)),
        [(Begin, 1), *TWO, (Commit, 1), *SETTLED, *TWO, (Commit, 1), *SETTLED, (Fetch, []), (Rollback, None)],
    )
    first, second = (step for step in flow.steps if isinstance(step, Commit))
    assert first.then is not None
    assert (first.then.token, first.then.lock_ms) == (second.token, LOCK_MS)
    assert [call.query.name for call in first.then.calls] == ["fence"]
    assert flow.value == 4


def test_it_goes_on_like_that_for_a_moment_only() -> None:
    clock = ticking(0.0, 0.0, CHAINED_SECONDS)
    flow = play(
        work_batch(work(mode="stored", batch=2, batch_seconds=5.0, monotonic=clock)),
        [(Begin, 1), *TWO, (Commit, 1), *SETTLED],
    )
    commit = flow.steps[6]
    assert isinstance(commit, Commit)
    assert commit.then is None


def test_what_was_committed_is_settled_although_the_next_transaction_could_not_be_opened() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=2)),
        [
            (Begin, 1), *TWO, (Commit, errors.LockBusy("55P03")), (Rollback, None),
            (Fetch, [known(item("evt-1")), known(item("evt-2"))]), *SETTLED,
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[8] == "Fetch(lookup)"
    assert flow.value == 2


def test_what_another_worker_has_finished_since_does_not_vouch_for_its_neighbours() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=2)),
        [
            (Begin, 1), *TWO, (Commit, errors.LockBusy("55P03")), (Rollback, None),
            (Fetch, [known(item("evt-1")), known(item("evt-2"), queued=True)]), (Side, None),
        ],
    )  # fmt: skip
    assert "Settle" not in script_of(flow.steps)


def test_nothing_due_ends_the_transaction_and_the_next_look_opens_none() -> None:
    worker = work(mode="stored")
    flow = play(work_batch(worker), [(Begin, 1), (Fetch, []), (Rollback, None)])
    assert flow.value == 0
    again = play(work_batch(worker), [(Fetch, [])])
    assert script_of(again.steps) == ["Fetch(due)"]


def test_where_there_is_one_writer_it_looks_first_then_marks_then_begins() -> None:
    flow = play(
        work_batch(work("sqlite", mode="stored")),
        [
            (Fetch, [(1,)]), (Side, [("[1]",)]), (Begin, 0), (Fetch, [queued(1)]), (Handle, None), (Commit, 0),
            (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[:4] == ["Fetch(due)", "Side(pick)", "Begin", "Fetch(taken)"]


def test_a_row_that_a_silent_worker_still_claims_is_put_off_and_not_run() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=2)),
        [(Begin, 1), (Fetch, [queued(1), queued(2)]), (Side, [(2,)]), (Commit, 0)],
    )
    assert queries_of(flow.steps[3]) == ["postpone", "withdraw"]
    commit = flow.steps[3]
    assert isinstance(commit, Commit)
    assert commit.calls[0].params["seqs"] == [2]
    assert flow.value == 1


@pytest.mark.parametrize(
    ("error", "attempts", "queries", "status"),
    [
        (ValueError("no"), 0, ["record_attempt", "charge", "withdraw"], Status.RETRY),
        (ValueError("no"), 2, ["record_attempt", "bury_queued", "finish", "withdraw"], Status.DEAD),
        (errors.Dead("fraud"), 0, ["record_attempt", "bury_queued", "finish", "withdraw"], Status.DEAD),
        (errors.Discard("test"), 0, ["record_attempt", "finish", "set_state", "withdraw"], Status.DISCARDED),
    ],
)
def test_a_message_that_fails_alone_is_charged_in_a_transaction_of_its_own(
    error: Exception, attempts: int, queries: list[str], status: Status
) -> None:
    flow = play(
        work_batch(work(mode="stored")),
        [
            (Begin, 1), (Fetch, [queued(1, attempts=attempts)]), (Side, []), (Handle, error), (Rollback, None),
            (Begin, 0), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[6]) == queries
    settled = flow.steps[7]
    assert isinstance(settled, Settle)
    assert settled.items[0].outcome is not None
    assert settled.items[0].outcome.status is status


def test_a_culprit_among_many_is_charged_in_the_transaction_its_neighbours_commit() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=2)),
        [
            (Begin, 1), (Fetch, [queued(1), queued(2)]), (Side, []), (Save, None),
            (Handle, ValueError("no")), (Restore, None), (Handle, None), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[7]) == ["finish", "record_attempt", "charge", "withdraw"]


def test_conflicts_run_again_uncharged_and_are_charged_when_there_are_too_many() -> None:
    worker = work(mode="stored")
    for _ in range(RERUNS_MAX):
        flow = play(
            work_batch(worker),
            [
                (Begin, 1), (Fetch, [queued(1)]), (Side, []), (Handle, errors.Conflict("deadlock")),
                (Rollback, None), (Side, None),
            ],
        )  # fmt: skip
        assert script_of(flow.steps)[-1] == "Side(withdraw)"
    flow = play(
        work_batch(worker),
        [
            (Begin, 1), (Fetch, [queued(1)]), (Side, []), (Handle, errors.Conflict("deadlock")), (Rollback, None),
            (Begin, 0), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert "record_attempt" in queries_of(flow.steps[6])


def test_conflicts_are_counted_anew_after_an_attempt_was_charged() -> None:
    worker = work(mode="stored")
    conflict: list[tuple[type, object]] = [
        (Begin, 1), (Fetch, [queued(1)]), (Side, []), (Handle, errors.Conflict("deadlock")), (Rollback, None),
        (Side, None),
    ]  # fmt: skip
    for _ in range(RERUNS_MAX):
        play(work_batch(worker), conflict)
    charged: list[tuple[type, object]] = [
        (Begin, 1), (Fetch, [queued(1)]), (Side, []), (Handle, ValueError("no")), (Rollback, None),
        (Begin, 0), (Commit, 0), (Settle, None),
    ]  # fmt: skip
    play(work_batch(worker), charged)
    play(work_batch(worker), conflict)


@pytest.mark.parametrize("error", [errors.DatabaseUnavailable("gone"), asyncio.CancelledError()])
def test_a_lost_database_and_a_cancellation_get_out_uncharged_with_the_marker_withdrawn(
    error: BaseException,
) -> None:
    flow = Stepped(work_batch(work(mode="stored")))
    for reply in (1, [queued(1)], [], error, None):
        flow.reply(reply)
    assert script_of(flow.steps)[-2:] == ["Rollback", "Side(withdraw)"]
    with pytest.raises(type(error)):
        flow.reply(None)
    assert "Settle" not in script_of(flow.steps)


@pytest.mark.parametrize(
    ("error", "limit"), [(errors.LockBusy("55P03"), 2), (errors.TransactionAborted("x"), 1)]
)
def test_a_batch_without_a_culprit_gets_smaller_and_charges_nobody(error: Exception, limit: int) -> None:
    worker = work(mode="stored", batch=4)
    flow = play(
        work_batch(worker),
        [
            (Begin, 1), (Fetch, [queued(n) for n in range(1, 5)]), (Side, []), (Save, None), (Handle, None),
            (Handle, None), (Handle, None), (Handle, None), (Commit, error), (Rollback, None),
            (Fetch, [known(item("evt-1"), queued=True)]), (Side, None),
        ],
    )  # fmt: skip
    assert worker.limit == limit
    assert "Settle" not in script_of(flow.steps)


def test_a_suspect_is_taken_alone_and_at_its_limit_it_is_buried_and_not_run() -> None:
    flow = play(
        work_batch(work(mode="stored", batch=100, crash_limit=4), suspect=True),
        [
            (Fetch, [(1,)]),
            (Begin, 1),
            (Fetch, [queued(1, deaths=4)]),
            (Side, []),
            (Commit, 0),
            (Settle, None),
        ],
    )
    assert script_of(flow.steps)[2] == "Fetch(take_suspect)"
    assert queries_of(flow.steps[4]) == ["bury_queued", "finish", "withdraw"]
    settled = flow.steps[5]
    assert isinstance(settled, Settle)
    assert settled.items[0].outcome is not None
    assert settled.items[0].outcome.reason == Reason.CRASH_LOOP


def test_messages_of_a_type_nobody_handles_are_buried_uncharged() -> None:
    flow = play(
        bury_unknown(work(mode="stored", unknown_type_seconds=60), ["paid"]),
        [(Begin, 0), (Fetch, [queued(1)]), (Commit, 0), (Begin, 0), (Fetch, []), (Rollback, None)],
    )
    assert script_of(flow.steps)[3:5] == ["Begin", "Fetch(take_unknown_suspect)"]
    assert queries_of(flow.steps[2]) == ["bury_queued", "finish"]
    commit = flow.steps[2]
    assert isinstance(commit, Commit)
    assert commit.calls[0].params["charged"] == 0


def test_no_suspect_is_taken_while_another_worker_of_the_process_has_one() -> None:
    one = work(mode="stored")
    other = object()
    assert one.alone.enter(other)
    flow = play(stored_turn(one, 1), [(Begin, 0), (Fetch, []), (Rollback, None)])
    assert flow.value is False
    one.alone.leave(other)
    flow = play(stored_turn(one, 1), [(Fetch, []), (Fetch, [])])
    assert script_of(flow.steps) == ["Fetch(due)", "Fetch(due_suspect)"]
    assert one.alone.enter(other), "and it has left"
