"""Group durability by hand: nothing is acked before one flush that vouches for it."""

import pytest

from oncebox import errors
from oncebox.core.inline import GROUP_MAX, stream
from oncebox.core.outcomes import Status
from oncebox.core.steps import Begin, Commit, Execute, Fetch, Flush, Handle, Next, Rollback, Settle, Step
from oncebox.core.work import Item
from tests.core.flows import item, known, work
from tests.core.stepping import Stepped, play, script_of

NEW: list[tuple[type[Step], object]] = [(Handle, None), (Next, None), (Commit, 0), (Next, None)]


def two_new(first: Item, second: Item) -> list[tuple[type, object]]:
    return [
        (Begin, 1), (Handle, None), (Next, second), (Commit, 1),
        (Handle, None), (Next, None), (Commit, 0), (Next, None),
    ]  # fmt: skip


def test_a_group_commits_lazily_and_settles_after_one_flush() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = play(
        stream(work(durability="group"), first),
        [*two_new(first, second), (Flush, 1), (Settle, None)],
    )
    begin = flow.steps[0]
    assert isinstance(begin, Begin)
    assert begin.lazy
    assert begin.calls[0].params["lazy"] is True
    assert script_of(flow.steps)[-2:] == ["Flush", "Settle"]


def test_the_last_processed_row_vouches_for_those_before_it() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = play(
        stream(work(durability="group"), first),
        [*two_new(first, second), (Flush, 1), (Settle, None)],
    )
    assert [step.keys for step in flow.steps if isinstance(step, Flush)] == [(("billing", "", "evt-2"),)]


def test_every_duplicate_is_vouched_for_because_its_row_may_be_anothers() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = play(
        stream(work(durability="group"), first),
        [
            (Begin, 0), (Fetch, [known(first, lazy=True)]), (Rollback, None), (Next, second),
            (Begin, 1), *NEW, (Flush, 2), (Settle, None),
        ],
    )  # fmt: skip
    flush = next(step for step in flow.steps if isinstance(step, Flush))
    assert flush.keys == (("billing", "", "evt-1"), ("billing", "", "evt-2"))


def test_a_flush_that_finds_too_few_rows_settles_nothing() -> None:
    first, second = item("evt-1"), item("evt-2")
    flow = Stepped(stream(work(durability="group"), first))
    for kind, reply in two_new(first, second):
        flow.expect(kind)
        flow.reply(reply)
    flow.expect(Flush)
    with pytest.raises(errors.DatabaseUnavailable, match="nothing of this group is acked"):
        flow.reply(0)
    assert "Settle" not in script_of(flow.steps)


def test_a_flush_that_fails_settles_nothing() -> None:
    flow = Stepped(stream(work(durability="group"), item()))
    for reply in (1, None, None, 0, None):
        flow.reply(reply)
    flow.expect(Flush)
    with pytest.raises(errors.DatabaseUnavailable):
        flow.reply(errors.DatabaseUnavailable("the server died before the flush"))
    assert "Settle" not in script_of(flow.steps)


def test_a_group_is_bounded_and_its_last_commit_opens_nothing() -> None:
    # A flush inside the next message's transaction would flush nothing.
    items = [item(f"evt-{n}") for n in range(GROUP_MAX + 1)]
    flow = Stepped(stream(work(durability="group"), items[0]))
    left = items[1:]
    while not isinstance(flow.step, Flush):
        match flow.step:
            case Begin():
                flow.reply(1)
            case Next():
                flow.reply(left.pop(0) if left else None)
            case Commit():
                flow.reply(1 if flow.step.then is not None else 0)
            case _:
                flow.expect(Handle)
                flow.reply(None)
    commits = [step for step in flow.steps if isinstance(step, Commit)]
    assert len(commits) == GROUP_MAX
    assert commits[-1].then is None


def test_a_failure_in_a_group_is_recorded_for_real_and_needs_no_voucher() -> None:
    one = item()
    flow = play(
        stream(work(durability="group"), one),
        [
            (Begin, 1), (Handle, ValueError("no")), (Rollback, None), (Begin, 1), (Fetch, [(1, 0)]), (Commit, 0),
            (Next, None), (Settle, None),
        ],
    )  # fmt: skip
    record = flow.steps[3]
    assert isinstance(record, Begin)
    assert not record.lazy


def test_a_dead_message_of_a_group_is_vouched_for() -> None:
    one = item()
    flow = play(
        stream(work(durability="group"), one),
        [
            (Begin, 1), (Handle, errors.Dead("fraud")), (Rollback, None), (Begin, 1), (Fetch, [(1, 0)]),
            (Execute, 1), (Commit, 0), (Next, None), (Flush, 1), (Settle, None),
        ],
    )  # fmt: skip
    assert flow.finished


def test_without_group_durability_a_fresh_lazy_duplicate_is_flushed_before_its_ack() -> None:
    one = item()
    flow = play(
        stream(work(), one),
        [
            (Begin, 0), (Fetch, [known(one, lazy=True)]), (Rollback, None), (Next, None),
            (Flush, 1), (Settle, None),
        ],
    )  # fmt: skip
    assert one.outcome is not None
    assert one.outcome.status is Status.DUPLICATE
    assert script_of(flow.steps)[-2:] == ["Flush", "Settle"]
