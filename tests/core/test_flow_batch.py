"""Batches by hand: one savepoint, culprits set aside, neighbours kept, whatever fails."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox import errors
from oncebox.core.batch import LOCK_MS, WARY_BATCHES, Run, handle_all, inline_batch
from oncebox.core.outcomes import Reason, Status
from oncebox.core.steps import Begin, Commit, Fetch, Flush, Handle, Restore, Rollback, Save, Settle
from oncebox.core.work import Item, Work
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn
from tests.core.flows import Handled, item, known, ticking, work
from tests.core.stepping import Stepped, play, queries_of, script_of


class Table:
    """The effects of a batch, with one savepoint, as a database would keep them."""

    def __init__(self, fails: Callable[[str, int], bool]) -> None:
        self.fails = fails
        self.effects: list[str] = []
        self.saved = 0
        self.saves = 0
        self.runs: Counter[str] = Counter()
        self.calls = 0

    def run(self, items: Sequence[Item], of: Work | None = None) -> Run:
        flow = Stepped(handle_all(of or work(batch=100), items))
        while not flow.finished:
            match flow.step:
                case Save():
                    self.saved = len(self.effects)
                    self.saves += 1
                    flow.reply()
                case Restore():
                    del self.effects[self.saved :]
                    flow.reply()
                case Handle(unit):
                    flow.reply(self.handle([one.message.id for one in unit]))
        assert flow.value is not None
        return flow.value

    def handle(self, ids: list[str]) -> object:
        self.calls += 1
        for one in ids:
            self.runs[one] += 1
        for one in ids:
            if self.fails(one, self.runs[one]):
                return ValueError(one)
            self.effects.append(one)
        return None


def ids(items: Sequence[Item]) -> list[str]:
    return [one.message.id for one in items]


singles = st.integers(1, 40).map(lambda size: [item(f"evt-{n}") for n in range(size)])


@settings(deadline=None)
@given(items=singles, data=st.data())
def test_no_handler_runs_more_than_twice_for_its_neighbours_sake(
    items: list[Item], data: st.DataObject
) -> None:
    everyone = ids(items)
    culprits = data.draw(st.sets(st.sampled_from(everyone))) if len(items) > 1 else set()
    table = Table(lambda one, _: one in culprits)
    of = work(batch=100)
    of.wary = data.draw(st.integers(0, 1))
    run = table.run(items, of)

    assert table.calls <= 2 * len(items)
    assert max(table.runs.values()) <= 2
    assert all(table.runs[one] == 1 for one in culprits)
    assert {one.message.id for one, _ in run.failed} == culprits
    assert table.effects == ids(run.done) == [one for one in everyone if one not in culprits]


@settings(deadline=None)
@given(sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 8)), min_size=2, max_size=6), data=st.data())
def test_list_handlers_stay_within_the_same_bound(sizes: list[tuple[bool, int]], data: st.DataObject) -> None:
    items = []
    for n, (batch, size) in enumerate(sizes):
        handler = Handled(f"handler-{n}", batch=batch)
        items += [item(f"evt-{n}-{m}", handler=handler) for m in range(size)]
    culprits = data.draw(st.sets(st.sampled_from(ids(items))))
    table = Table(lambda one, _: one in culprits)
    run = table.run(items)

    assert table.calls <= 2 * len(items)
    assert sorted(table.effects) == sorted(set(ids(items)) - culprits)
    assert sorted(ids(run.done)) == sorted(table.effects)
    assert {one.message.id for one, _ in run.failed} == culprits


@settings(deadline=None)
@given(items=singles.filter(lambda items: len(items) > 1), data=st.data())
def test_handlers_that_fail_now_and_then_still_leave_one_effect_each(
    items: list[Item], data: st.DataObject
) -> None:
    when = {one: data.draw(st.sets(st.integers(1, 4))) for one in ids(items)}
    table = Table(lambda one, times: times in when[one])
    run = table.run(items)

    assert table.effects == ids(run.done)
    assert len(set(table.effects)) == len(table.effects)
    assert set(ids(run.done)) | {one.message.id for one, _ in run.failed} == set(ids(items))


def test_where_messages_failed_lately_a_failure_undoes_few() -> None:
    of = work(batch=100)
    table = Table(lambda one, _: one.endswith("99"))
    table.run([item(f"evt-{n}") for n in range(100)], of)
    assert table.calls == 199, "nobody expected it"
    table.calls = table.saves = 0
    table.run([item(f"evt-{n}") for n in range(100, 200)], of)
    assert table.calls <= 115
    assert table.saves <= 8
    assert len(table.effects) == 2 * 99


def test_batches_without_a_failure_save_once_after_a_while() -> None:
    of = work(batch=100)
    Table(lambda one, _: one == "evt-1").run([item(f"evt-{n}") for n in range(100)], of)
    saves = []
    for _ in range(WARY_BATCHES + 1):
        table = Table(lambda one, _: False)
        table.run([item(f"evt-{n}") for n in range(100)], of)
        saves.append(table.saves)
    assert saves == [8] * WARY_BATCHES + [1]


def test_nothing_is_saved_for_a_batch_of_one() -> None:
    flow = play(handle_all(work(), [item()]), [(Handle, None)])
    assert flow.value is not None
    assert len(flow.value.done) == 1


def test_a_batch_past_its_time_leaves_the_rest_and_keeps_what_is_done() -> None:
    items = [item(f"evt-{n}") for n in range(4)]
    clock = ticking(0.0, 1.0, 9.0)
    run = Table(lambda one, _: False).run(items, work(batch=4, batch_seconds=5.0, monotonic=clock))
    assert (len(run.done), len(run.left)) == (2, 2)


def test_a_batch_past_its_time_does_at_least_one() -> None:
    items = [item(f"evt-{n}") for n in range(3)]
    run = Table(lambda one, _: False).run(
        items, work(batch=3, batch_seconds=5.0, monotonic=ticking(0.0, 99.0))
    )
    assert (len(run.done), len(run.left)) == (1, 2)


@pytest.mark.parametrize(
    "error", [errors.DatabaseUnavailable("gone"), errors.Conflict("deadlock"), errors.LockBusy("busy")]
)
def test_what_is_nobodys_fault_leaves_the_batch_without_a_culprit(error: Exception) -> None:
    flow = Stepped(handle_all(work(batch=2), [item("evt-1"), item("evt-2")]))
    flow.reply()
    flow.expect(Handle)
    with pytest.raises(type(error)):
        flow.reply(error)


def claimed(*items: Item) -> list[tuple[str, str]]:
    return [(one.message.source, one.message.id) for one in items]


def test_an_inline_batch_is_one_transaction_with_its_culprit_charged_in_it() -> None:
    good, bad = item("evt-1"), item("evt-2")
    flow = play(
        inline_batch(work(batch=2), [good, bad]),
        [
            (Begin, 0), (Fetch, claimed(good, bad)), (Save, None), (Handle, None), (Handle, ValueError("no")),
            (Restore, None), (Handle, {"n": 1}), (Fetch, [(0, 0)]), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[8]) == ["keep_result", "record_attempt", "unclaim"]
    assert flow.value == ([], None)
    assert good.outcome is not None
    assert bad.outcome is not None
    assert (good.outcome.status, bad.outcome.status) == (Status.PROCESSED, Status.RETRY)


@pytest.mark.parametrize(
    ("error", "queries", "status"),
    [
        (errors.Dead("fraud"), ["record_attempt", "bury"], Status.DEAD),
        (errors.Discard("test"), ["record_attempt", "set_state"], Status.DISCARDED),
    ],
)
def test_a_culprit_that_is_not_tried_again_keeps_its_claim(
    error: Exception, queries: list[str], status: Status
) -> None:
    good, bad = item("evt-1"), item("evt-2")
    flow = play(
        inline_batch(work(batch=2), [bad, good]),
        [
            (Begin, 0), (Fetch, claimed(good, bad)), (Save, None), (Handle, error), (Restore, None),
            (Handle, None), (Fetch, [(0, 0)]), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[7]) == queries
    assert bad.outcome is not None
    assert bad.outcome.status is status


def test_a_batch_names_its_duplicates_and_buries_its_conflicts() -> None:
    new, seen, clash = item("evt-1"), item("evt-2"), item("evt-3")
    flow = play(
        inline_batch(work(batch=3), [new, seen, clash]),
        [
            (Begin, 0), (Fetch, claimed(new)), (Fetch, [known(seen, body=b"7"), known(clash, fingerprint=b"other")]),
            (Fetch, [(1,)]), (Handle, None), (Commit, 0), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[5]) == ["bury"]
    assert seen.outcome is not None
    assert clash.outcome is not None
    assert (seen.outcome.status, seen.outcome.result) == (Status.DUPLICATE, 7)
    assert (clash.outcome.status, clash.outcome.reason) == (Status.DEAD, Reason.CONFLICT)


def test_a_second_delivery_in_the_same_batch_waits_for_the_next() -> None:
    first, second = item("evt-1"), item("evt-1")
    flow = play(
        inline_batch(work(batch=2), [first, second]),
        [(Begin, 0), (Fetch, claimed(first)), (Handle, None), (Commit, 0), (Settle, None)],
    )
    assert flow.value == ([second], None)


def test_what_a_batch_did_not_get_to_holds_no_claim() -> None:
    items = [item(f"evt-{n}") for n in range(3)]
    flow = play(
        inline_batch(work(batch=3, batch_seconds=5.0, monotonic=ticking(0.0, 99.0)), items),
        [(Begin, 0), (Fetch, claimed(*items)), (Save, None), (Handle, None), (Commit, 0), (Settle, None)],
    )
    assert queries_of(flow.steps[4]) == ["unclaim", "unclaim"]
    assert flow.value == (items[1:], None)


@pytest.mark.parametrize(("error", "limit"), [(errors.Conflict("40P01"), 4), (errors.LockBusy("55P03"), 4)])
def test_batches_in_each_others_way_are_halved_and_uncharged(error: Exception, limit: int) -> None:
    items = [item(f"evt-{n}") for n in range(8)]
    worker = work(batch=8)
    flow = play(
        inline_batch(worker, items),
        [(Begin, 0), (Fetch, claimed(*items)), (Save, None), (Handle, error), (Rollback, None)],
    )
    assert flow.value == (items, None)
    assert worker.limit == limit
    assert "Settle" not in script_of(flow.steps)


def test_after_a_loss_in_a_batch_each_runs_alone_so_that_whose_handler_it_is_can_be_told() -> None:
    items = [item(f"evt-{n}") for n in range(8)]
    worker = work(batch=8)
    flow = Stepped(inline_batch(worker, items))
    for reply in (0, claimed(*items), None, errors.DatabaseUnavailable("gone")):
        flow.reply(reply)
    flow.expect(Rollback)
    with pytest.raises(errors.DatabaseUnavailable):
        flow.reply()
    assert worker.limit == 1
    assert [one.outcome for one in items] == [None] * 8


def test_a_commit_without_a_known_culprit_goes_one_by_one() -> None:
    items = [item("evt-1"), item("evt-2")]
    worker = work(batch=2)
    flow = play(
        inline_batch(worker, items),
        [
            (Begin, 0), (Fetch, claimed(*items)), (Save, None), (Handle, None), (Handle, None),
            (Commit, errors.TransactionAborted("an error was swallowed")), (Rollback, None),
        ],
    )  # fmt: skip
    assert flow.value == (items, None)
    assert worker.limit == 1
    assert [one.outcome for one in items] == [None, None]


def test_a_success_grows_the_limit_back_by_one() -> None:
    worker = work(batch=8)
    worker.limit = 3
    items = [item("evt-1"), item("evt-2")]
    play(
        inline_batch(worker, items),
        [
            (Begin, 0), (Fetch, claimed(*items)), (Save, None), (Handle, None), (Handle, None), (Commit, 0),
            (Settle, None),
        ],
    )  # fmt: skip
    assert worker.limit == 4


def test_a_lazy_duplicate_in_a_batch_is_flushed_before_anything_is_settled() -> None:
    new, seen = item("evt-1"), item("evt-2")
    flow = play(
        inline_batch(work(batch=2), [new, seen]),
        [
            (Begin, 0), (Fetch, claimed(new)), (Fetch, [known(seen, lazy=True)]), (Handle, None), (Commit, 0),
            (Flush, 1), (Settle, None),
        ],
    )  # fmt: skip
    assert flow.finished


def yes() -> bool:
    return True


def test_where_it_goes_on_a_batchs_commit_opens_the_next_ones_transaction() -> None:
    items = [item(f"evt-{n}") for n in range(4)]
    worker = work(batch=2)
    batch: list[tuple[type, object]] = [
        (Save, None), (Handle, None), (Handle, None), (Commit, 0), (Settle, None),
    ]  # fmt: skip
    flow = play(
        inline_batch(worker, items[:2], None, yes), [(Begin, 0), (Fetch, claimed(*items[:2])), *batch]
    )
    commit = flow.steps[5]
    assert isinstance(commit, Commit)
    assert commit.then == Begin("t2", lock_ms=LOCK_MS)
    assert flow.value == ([], "t2")
    flow = play(inline_batch(worker, items[2:], "t2"), [(Fetch, claimed(*items[2:])), *batch])
    commit = flow.steps[4]
    assert isinstance(commit, Commit)
    assert (commit.token, commit.then) == ("t2", None)


def test_nothing_is_opened_where_something_is_still_to_be_flushed_or_was_left() -> None:
    new, seen = item("evt-1"), item("evt-2")
    flow = play(
        inline_batch(work(batch=2), [new, seen], None, yes),
        [
            (Begin, 0), (Fetch, claimed(new)), (Fetch, [known(seen, lazy=True)]), (Handle, None), (Commit, 0),
            (Flush, 1), (Settle, None),
        ],
    )  # fmt: skip
    assert flow.value == ([], None)
    first, second = item("evt-1"), item("evt-1")
    flow = play(
        inline_batch(work(batch=2), [first, second], None, yes),
        [(Begin, 0), (Fetch, claimed(first)), (Handle, None), (Commit, 0), (Settle, None)],
    )
    assert flow.value == ([second], None)


def test_a_commit_that_fails_with_what_it_was_to_open_is_left_to_the_claims_of_the_next_try() -> None:
    """Some of them may be another worker's by then: who asks about one knows nothing of the others."""
    items = [item("evt-1"), item("evt-2")]
    worker = work(batch=2)
    flow = play(
        inline_batch(worker, items, None, yes),
        [
            (Begin, 0), (Fetch, claimed(*items)), (Save, None), (Handle, None), (Handle, None),
            (Commit, errors.DatabaseError("57014")), (Rollback, None),
        ],
    )  # fmt: skip
    assert flow.value == (items, None)
    assert [one.outcome for one in items] == [None, None]
    flow = play(
        inline_batch(worker, items),
        [
            (Begin, 0),
            (Fetch, []),
            (Fetch, [known(one) for one in items]),
            (Commit, 0),
            (Settle, None),
        ],
    )
    assert [one.outcome and one.outcome.status for one in items] == [Status.DUPLICATE] * 2


def test_a_turn_takes_one_batch_after_the_other_and_rolls_back_what_was_opened_for_nobody() -> None:
    items = [item(f"evt-{n}") for n in range(6)]
    mailbox = ThreadMailbox()
    mailbox.items.extend(items)
    flow = Stepped(inline_turn(work(batch=2), mailbox))
    for start in (0, 2):
        if start == 0:
            flow.expect(Begin)
            flow.reply(0)
        flow.reply(claimed(*items[start : start + 2]))
        for reply in (None, None, None):
            flow.reply(reply)
        commit = flow.step
        assert isinstance(commit, Commit)
        assert commit.then is not None
        if start == 2:
            mailbox.items.clear()  # called back, as when a partition is revoked
        for reply in (0, None):
            flow.reply(reply)
    flow.expect(Rollback)
    flow.reply(None)
    assert flow.finished
    assert flow.value is True
