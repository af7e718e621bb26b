"""An inbox that only observes: nothing is suppressed, everything that would be is counted."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import pytest

from oncebox import Message, errors
from oncebox.inbox import Inbox
from tests.guard.rigs import Rig


@pytest.fixture
def watching(rig: Rig) -> Inbox:
    """Its name is the rig's: tallies are not emptied between tests."""
    return Inbox(f"watching {rig.name}", observe=True)


def tally(rig: Rig, inbox: Inbox) -> dict[str, int]:
    rows = rig.rows(
        f"SELECT outcome, sum(n) FROM oncebox.tally WHERE consumer = '{inbox.consumer}' GROUP BY outcome"
    )
    found = {str(outcome): int(n) for outcome, n in rows}
    rig.write(f"DELETE FROM oncebox.tally WHERE consumer = '{inbox.consumer}'")
    return found


async def deliver(rig: Rig, inbox: Inbox, payload: object = None) -> str:
    async with rig.transaction() as desk, desk.once(inbox, "evt-1", payload=payload) as claim:
        assert claim.first
        await desk.run("INSERT INTO shop_effect VALUES ('done')")
        claim.result = {"n": str(payload)}
        return claim.observed


async def test_duplicates_and_conflicts_run_and_are_counted(rig: Rig, watching: Inbox) -> None:
    seen = [await deliver(rig, watching, payload) for payload in (b"a", b"a", b"b")]
    assert seen == ["", "duplicate", "conflict"]
    assert rig.effects() == 3
    assert tally(rig, watching) == {"observed_duplicate": 1, "observed_conflict": 1}
    async with rig.transaction() as desk, desk.once(Inbox(watching.consumer), "evt-1", payload=b"a") as claim:
        assert not claim.first, "the ledger is the same for who suppresses"
        assert claim.result == {"n": "b'a'"}, "the first delivery's is kept"


async def test_a_batch_is_observed_too(rig: Rig, watching: Inbox) -> None:
    messages = [Message(id=name, payload=body) for name, body in (("a", b"1"), ("a", b"1"), ("b", b"1"))]
    for wanted in (["", "duplicate", ""], ["duplicate"] * 3):
        async with rig.transaction() as desk:
            claims = await desk.claim_many(watching, messages)
            assert [claim.first for claim in claims] == [True, True, True]
            assert [claim.observed for claim in claims] == wanted
    assert tally(rig, watching) == {"observed_duplicate": 4}


async def test_what_is_rolled_back_is_not_counted_and_marks_nothing(rig: Rig, watching: Inbox) -> None:
    await deliver(rig, watching)
    for commits in (False, True):
        with pytest.raises(ValueError, match="mine"):
            async with rig.transaction() as desk:
                try:
                    async with desk.once(watching, "evt-1") as claim:
                        assert claim.observed == "duplicate"
                        raise ValueError("mine")
                except ValueError:
                    if not commits:
                        raise
            raise ValueError("mine")
    # Committed all the same after its block raised: the first delivery's effect stands, nothing is unfinished.
    assert await deliver(rig, watching) == "duplicate"
    assert tally(rig, watching) == {"observed_duplicate": 2}


async def test_a_mistake_in_the_code_is_still_one(rig: Rig, watching: Inbox) -> None:
    with pytest.raises(errors.AlreadyClaimed):
        async with rig.transaction() as desk, desk.once(watching, "evt-1") as claim:
            assert claim.first
            async with desk.once(watching, "evt-1"):
                pass
