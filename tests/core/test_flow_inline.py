"""The inline flow by hand: which steps it asks for, in which order, whatever they answer."""

from typing import Any

import pytest

from oncebox import errors
from oncebox.core.inline import stream
from oncebox.core.outcomes import Answer, Outcome, Reason, Status
from oncebox.core.steps import (
    Begin,
    Commit,
    Execute,
    Fetch,
    Flush,
    Handle,
    Next,
    Rollback,
    Settle,
    Side,
    Step,
)
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import next_turn
from tests.core.flows import item, known, work
from tests.core.stepping import Stepped, play, queries_of, script_of


def outcome_of(one: object) -> Outcome:
    outcome = getattr(one, "outcome", None)
    assert isinstance(outcome, Outcome)
    return outcome


def test_a_new_message_is_claimed_handled_and_committed_before_it_is_settled() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [(Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None)],
    )
    assert script_of(flow.steps) == ["Begin(claim)", "Handle", "Next", "Commit", "Next", "Settle"]
    assert outcome_of(one) == Outcome(Status.PROCESSED)


def test_a_result_is_kept_in_the_effects_transaction_and_read_back_as_a_duplicate_will() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [(Begin, 1), (Handle, (1, 2)), (Next, None), (Commit, 0), (Next, None), (Settle, None)],
    )
    assert queries_of(flow.steps[3]) == ["keep_result"]
    assert outcome_of(one).result == [1, 2]


def test_a_commit_carries_the_token_its_transaction_was_opened_with() -> None:
    flow = Stepped(stream(work(), item()))
    token = flow.expect(Begin).token
    for reply in (1, None, None):
        flow.reply(reply)
    assert flow.expect(Commit).token == token


def test_a_duplicate_is_not_handled_and_returns_the_first_result() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [
            (Begin, 0),
            (Fetch, [known(one, body=b'{"n":1}')]),
            (Next, None),
            (Rollback, None),
            (Next, None),
            (Settle, None),
        ],
    )
    assert queries_of(flow.steps[1]) == ["lookup_one"]
    assert outcome_of(one) == Outcome(Status.DUPLICATE, {"n": 1})


@pytest.mark.parametrize(
    ("row", "status", "answer"),
    [
        ({"queued": True}, Status.WAITING, Answer.ACK),
        ({"reason": "exhausted"}, Status.DEAD, Answer.ACK),
        ({"state": 2}, Status.DISCARDED, Answer.ACK),
        ({"state": 3}, Status.STALE, Answer.ACK),
        ({"state": 4}, Status.SUPPRESSED, Answer.ACK),
    ],
)
def test_a_known_message_is_answered_by_what_its_row_says(
    row: dict[str, Any], status: Status, answer: Answer
) -> None:
    one = item()
    play(
        stream(work(), one),
        [
            (Begin, 0), (Fetch, [known(one, **row)]), (Next, None), (Rollback, None), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert (outcome_of(one).status, outcome_of(one).answer) == (status, answer)


@pytest.mark.parametrize(
    ("row", "reason"),
    [({"fingerprint": b"another"}, Reason.CONFLICT), ({"state": 1}, Reason.UNFINISHED)],
)
def test_a_row_that_contradicts_the_delivery_buries_it(row: dict[str, Any], reason: Reason) -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [
            (Begin, 0), (Fetch, [known(one, **row)]), (Fetch, [(1,)]), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[3]) == ["bury"]
    assert (outcome_of(one).status, outcome_of(one).reason) == (Status.DEAD, reason)


def test_nothing_is_buried_beside_a_row_that_somebody_is_changing() -> None:
    one = item()
    play(
        stream(work(), one),
        [
            (Begin, 0), (Fetch, [known(one, state=1)]), (Fetch, []), (Rollback, None),
            (Begin, 0), (Fetch, [known(one)]), (Next, None), (Rollback, None),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert outcome_of(one).status is Status.DUPLICATE


def test_a_row_that_vanished_between_two_statements_is_asked_for_again_and_never_called_new() -> None:
    one = item()
    play(
        stream(work(), one),
        [
            (Begin, 0), (Fetch, []), (Rollback, None),
            (Begin, 0), (Fetch, [known(one)]), (Next, None), (Rollback, None),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert outcome_of(one).status is Status.DUPLICATE


def test_a_row_that_keeps_vanishing_leaves_the_message_in_flight() -> None:
    one = item()
    turn: list[tuple[type, object]] = [(Begin, 0), (Fetch, []), (Rollback, None)]
    play(stream(work(), one), [*turn * 11, (Next, None), (Settle, None)])
    assert (outcome_of(one).status, outcome_of(one).answer) == (Status.IN_FLIGHT, Answer.NACK)


def test_a_refused_message_is_buried_under_its_claim_and_never_handled() -> None:
    one = item()
    one.refusal = (Reason.UNKNOWN_TYPE, errors.UsageError("no handler"))
    flow = play(stream(work(), one), [(Begin, 1), (Commit, 0), (Next, None), (Settle, None)])
    assert queries_of(flow.steps[1]) == ["bury"]
    assert (outcome_of(one).status, outcome_of(one).reason) == (Status.DEAD, Reason.UNKNOWN_TYPE)


def test_a_claim_that_another_worker_holds_is_left_in_flight_and_uncharged() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [(Begin, errors.LockBusy("held")), (Rollback, None), (Next, None), (Settle, None)],
    )
    assert outcome_of(one).status is Status.IN_FLIGHT
    assert "record_attempt" not in str(script_of(flow.steps))


def test_the_next_claim_travels_with_the_commit() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = play(
        stream(work(), first),
        [
            (Begin, 1), (Handle, None), (Next, second), (Commit, 1), (Settle, None),
            (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps)[3] == "Commit(claim)"
    assert outcome_of(first).status is outcome_of(second).status is Status.PROCESSED


def test_a_chained_claim_that_changed_nothing_is_a_duplicate() -> None:
    first, second = item("evt-1"), item("evt-2")
    play(
        stream(work(), first),
        [
            (Begin, 1), (Handle, None), (Next, second), (Commit, 0), (Settle, None),
            (Fetch, [known(second)]), (Next, None), (Rollback, None), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert (outcome_of(first).status, outcome_of(second).status) == (Status.PROCESSED, Status.DUPLICATE)


def test_the_next_claim_travels_with_the_end_of_a_duplicate() -> None:
    first, second, third = item("evt-1"), item("evt-2"), item("evt-3")
    flow = play(
        stream(work(), first),
        [
            (Begin, 0), (Fetch, [known(first)]), (Next, second), (Commit, 0), (Settle, None),
            (Fetch, [known(second)]), (Next, third), (Commit, 1), (Settle, None),
            (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[3]) == ["claim"], "nothing is written for the duplicate itself"
    assert [outcome_of(one).status for one in (first, second, third)] == [
        Status.DUPLICATE, Status.DUPLICATE, Status.PROCESSED,
    ]  # fmt: skip


def test_a_duplicate_stays_one_when_the_claim_that_travelled_along_failed() -> None:
    first, second = item("evt-1"), item("evt-2")
    play(
        stream(work(), first),
        [
            (Begin, 0), (Fetch, [known(first)]), (Next, second), (Commit, errors.LockBusy("the next one is held")),
            (Rollback, None), (Settle, None),
            (Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert (outcome_of(first).status, outcome_of(second).status) == (Status.DUPLICATE, Status.PROCESSED)


def test_nothing_is_opened_before_a_duplicate_of_a_lazy_commit_is_vouched_for() -> None:
    first, second = item("evt-1"), item("evt-2")
    play(
        stream(work(), first),
        [
            (Begin, 0), (Fetch, [known(first, lazy=True)]), (Rollback, None), (Next, second), (Flush, 1),
            (Settle, None),
            (Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert (outcome_of(first).status, outcome_of(second).status) == (Status.DUPLICATE, Status.PROCESSED)


def test_a_commit_that_went_through_is_not_undone_by_the_claim_that_failed_with_it() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = play(
        stream(work(), first),
        [
            (Begin, 1), (Handle, None), (Next, second), (Commit, errors.LockBusy("the next one is held")),
            (Rollback, None), (Fetch, [known(first)]), (Settle, None),
            (Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert script_of(flow.steps).count("Handle") == 2
    assert outcome_of(first).status is outcome_of(second).status is Status.PROCESSED


def test_a_chained_commit_that_did_not_go_through_is_a_failure_of_its_own_message() -> None:
    first, second = item("evt-1"), item("evt-2")
    play(
        stream(work(), first),
        [
            (Begin, 1), (Handle, None), (Next, second), (Commit, errors.TransactionEnded("it committed by itself")),
            (Rollback, None), (Fetch, []),
            (Begin, 1), (Fetch, [(1, 0)]), (Execute, 1), (Commit, 0), (Settle, None),
            (Begin, 1), (Handle, None), (Next, None), (Commit, 0), (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    assert (outcome_of(first).status, outcome_of(first).reason) == (Status.DEAD, Reason.TERMINAL)
    assert outcome_of(second).status is Status.PROCESSED


def test_a_suspect_does_not_travel_with_a_commit_because_it_is_marked_first() -> None:
    first, suspect = item("evt-1"), item("evt-2", deliveries=2)
    flow = play(
        stream(work(), first),
        [
            (Begin, 1), (Handle, None), (Next, suspect), (Commit, 0), (Settle, None),
            (Begin, 1), (Fetch, [(0, 0)]), (Side, [(0,)]), (Handle, None), (Next, None), (Commit, 0),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    names = script_of(flow.steps)
    assert names.index("Side(mark_inline)") < names.index("Handle", 5)
    assert "withdraw" in names[-3], "the marker goes with the commit"


def test_a_worker_that_always_has_a_next_message_looks_at_its_queue_all_the_same() -> None:
    one, two = item(), item("evt-2")
    worker = work(monotonic=lambda: 60.0)
    worker.looked = 59.9
    mailbox = ThreadMailbox()
    mailbox.items.extend([one, two])
    turn: list[tuple[type[Step], object]] = [
        (Begin, 1),
        (Handle, None),
        (Next, None),
        (Commit, 0),
        (Next, None),
        (Settle, None),
    ]
    flow = play(next_turn(worker, mailbox, 1), turn)
    assert script_of(flow.steps)[-1] == "Settle", "it has looked a moment ago"
    worker.looked = 58.0
    # It asks for no next message, and what is due in the queue has its turn.
    due: list[tuple[type[Step], object]] = [
        (Begin, 1),
        (Handle, None),
        (Commit, 0),
        (Settle, None),
        (Begin, 0),
        (Fetch, []),
    ]
    flow = play(next_turn(worker, mailbox, 2), [*due, (Rollback, None), (Fetch, [])])
    assert queries_of(flow.steps[5]) == ["take"]
    assert worker.looked == 60.0
