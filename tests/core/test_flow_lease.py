"""Long handlers, deaths and migrations by hand."""

import asyncio

import pytest

from oncebox import errors
from oncebox.core.leased import work_long
from oncebox.core.migrate import Plan, migrate
from oncebox.core.outcomes import Outcome, Reason, Status
from oncebox.core.queries import Query
from oncebox.core.reap import reap, reap_lapsed
from oncebox.core.steps import (
    Begin,
    Commit,
    Execute,
    Fetch,
    Handle,
    Keep,
    Rollback,
    Script,
    Settle,
    Side,
    Step,
)
from oncebox.core.work import Work
from tests.core.flows import queued, work
from tests.core.stepping import Stepped, play, queries_of, script_of

LEASED: list[tuple[type[Step], object]] = [(Begin, 0), (Fetch, [queued(1)]), (Commit, 0), (Keep, None)]


def worker(dialect: str = "postgresql", **policy: object) -> Work:
    return work(dialect, mode="stored", long_types=("paid",), **policy)


def outcome_of(step: Step) -> Outcome:
    assert isinstance(step, Settle)
    [item] = step.items
    assert item.outcome is not None
    return item.outcome


def test_a_long_handler_runs_outside_the_transaction_that_leased_its_message() -> None:
    flow = play(
        work_long(worker()),
        [*LEASED, (Begin, 1), (Handle, {"n": 1}), (Fetch, [(1,)]), (Commit, 0), (Keep, None), (Settle, None)],
    )
    assert script_of(flow.steps) == [
        "Begin", "Fetch(take)", "Commit(lease)", "Keep", "Begin(fence)", "Handle",
        "Fetch(still_leased)", "Commit(keep_result,finish_leased)", "Keep", "Settle",
    ]  # fmt: skip
    assert outcome_of(flow.steps[-1]).status is Status.PROCESSED


def test_a_finisher_whose_lease_was_taken_over_rolls_its_effects_back() -> None:
    flow = play(
        work_long(worker()),
        [*LEASED, (Begin, 1), (Handle, None), (Fetch, []), (Rollback, None), (Keep, None), (Settle, None)],
    )
    outcome = outcome_of(flow.steps[-1])
    assert outcome.status is Status.IN_FLIGHT
    assert isinstance(outcome.error, errors.LeaseLost)


def test_a_failure_under_a_lost_lease_is_not_recorded() -> None:
    flow = play(
        work_long(worker()),
        [
            *LEASED, (Begin, 1), (Handle, ValueError("no")), (Rollback, None),
            (Begin, 0), (Fetch, []), (Rollback, None), (Keep, None), (Settle, None),
        ],
    )  # fmt: skip
    assert outcome_of(flow.steps[-1]).status is Status.IN_FLIGHT
    assert "record_attempt" not in str(script_of(flow.steps))


def test_a_failure_under_its_own_lease_is_charged() -> None:
    flow = play(
        work_long(worker()),
        [
            *LEASED, (Begin, 1), (Handle, ValueError("no")), (Rollback, None),
            (Begin, 0), (Fetch, [(1,)]), (Commit, 0), (Keep, None), (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[-3]) == ["record_attempt", "charge"]


def test_a_lease_found_lapsed_is_a_death_on_record() -> None:
    row = queued(1, deaths=1, token="another/1")
    flow = Stepped(work_long(worker()))
    for reply in (0, [row], []):
        flow.reply(reply)
    commit = flow.expect(Commit)
    assert queries_of(commit) == ["record_attempt", "lease"]
    assert commit.calls[0].params["died"] is True
    assert commit.calls[1].params["deaths"] == 1


def test_lapsed_leases_end_as_a_crash_loop() -> None:
    flow = play(
        work_long(worker(crash_limit=3)),
        [
            (Begin, 0), (Fetch, [queued(1, deaths=2, token="another/1")]), (Fetch, []), (Commit, 0),
            (Settle, None),
        ],
    )  # fmt: skip
    assert queries_of(flow.steps[3]) == ["record_attempt", "bury_queued", "finish"]
    assert outcome_of(flow.steps[4]).reason == Reason.CRASH_LOOP


def test_a_lease_that_a_living_worker_let_lapse_is_nobodys_death() -> None:
    flow = Stepped(work_long(worker()))
    for reply in (0, [queued(1, token="another/1")], [(1,)]):
        flow.reply(reply)
    commit = flow.expect(Commit)
    assert queries_of(commit) == ["lease"]
    assert commit.calls[0].params["deaths"] == 0


@pytest.mark.parametrize("error", [errors.DatabaseUnavailable("gone"), asyncio.CancelledError()])
def test_a_cancelled_long_handler_stops_keeping_its_lease(error: BaseException) -> None:
    flow = Stepped(work_long(worker()))
    script: list[tuple[type[Step], object]] = [*LEASED, (Begin, 1), (Handle, error), (Rollback, None)]
    for kind, reply in script:
        flow.expect(kind)
        flow.reply(reply)
    assert flow.expect(Keep).on is False
    flow.reply(None)
    assert queries_of(flow.expect(Side)) == ["give_up"]
    with pytest.raises(type(error)):
        flow.reply([])


def test_nothing_to_lease_leaves_no_trace() -> None:
    flow = play(work_long(worker()), [(Begin, 0), (Fetch, []), (Fetch, []), (Rollback, None)])
    assert flow.value == 0


def test_whoever_deletes_the_silent_workers_row_counts_its_deaths() -> None:
    hands = [("billing", [7, 3], None, None), ("billing", [], "payments", "evt-9")]
    flow = play(
        reap_lapsed(work(), 10.0),
        [(Fetch, [("w2",)]), (Begin, 1), (Fetch, hands), (Execute, 2), (Commit, 0), (Fetch, [])],
    )
    assert script_of(flow.steps) == [
        "Fetch(lapsed)", "Begin(reap)", "Fetch(reap_hands)", "Execute(suspect)",
        "Commit(record_attempt,record_deaths)", "Fetch(orphans)",
    ]  # fmt: skip
    suspects = flow.steps[3]
    assert isinstance(suspects, Execute)
    assert suspects.calls[0].params["seqs"] == [3, 7], "in one order everywhere"
    assert flow.value == 1


def test_a_worker_that_another_reaped_or_that_beats_again_is_left_alone() -> None:
    flow = play(reap(work(), "w2", 10.0), [(Begin, 0), (Rollback, None)])
    assert flow.value == 0


def test_a_reaper_in_somebodys_way_tries_another_time() -> None:
    flow = play(
        reap(work(), "w2", 10.0),
        [
            (Begin, 1),
            (Fetch, [("billing", [7], None, None)]),
            (Execute, errors.LockBusy("in hand")),
            (Rollback, None),
        ],
    )
    assert flow.value == 0


def test_hands_without_a_worker_are_counted_too() -> None:
    flow = play(
        reap_lapsed(work("sqlite"), 10.0),
        [
            (Fetch, []), (Fetch, [("w3",)]), (Begin, 0), (Fetch, [("billing", "[5]", None, None)]),
            (Execute, 1), (Commit, 0),
        ],
    )  # fmt: skip
    assert flow.value == 1


PLAN = Plan(
    lock="LOCK",
    preamble=("CREATE version",),
    current=Query("schema_versions", "SELECT version", False),
    session=None,
    versions=((1, "FIRST"), (2, "SECOND")),
)
OPENED: list[tuple[type[Step], object]] = [(Begin, 0), (Script, None), (Script, None)]


def test_each_missing_version_is_applied_under_a_lock_in_a_transaction_of_its_own() -> None:
    flow = play(
        migrate(PLAN),
        [
            (Fetch, errors.SchemaMissing("no tables")),
            *OPENED, (Fetch, [(1,)]), (Rollback, None),
            *OPENED, (Fetch, [(1,)]), (Script, None), (Commit, 0),
        ],
    )  # fmt: skip
    texts = [step.text for step in flow.steps if isinstance(step, Script)]
    assert texts == ["LOCK", "CREATE version", "LOCK", "CREATE version", "SECOND"]
    assert flow.value == [2]


def test_a_schema_that_is_up_to_date_is_only_looked_at() -> None:
    flow = play(migrate(PLAN), [(Fetch, [(1,), (2,)])])
    assert flow.value == []


def test_a_migration_that_fails_is_rolled_back() -> None:
    flow = Stepped(migrate(PLAN))
    replies: list[object] = [[], 0, None, None, [], errors.DatabaseError("no room")]
    for reply in replies:
        flow.reply(reply)
    flow.expect(Rollback)
    with pytest.raises(errors.DatabaseError):
        flow.reply(None)
