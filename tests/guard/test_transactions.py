"""The transaction is the user's: joined, never ended, and checked to be the same at both ends."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import pytest

from oncebox import errors
from oncebox.inbox import Inbox
from oncebox.message import Message
from tests.guard.rigs import Rig
from tests.guard.test_deliveries import deliver

INSERT = "INSERT INTO shop_effect VALUES ('x')"


async def test_autocommit_is_refused_and_leaves_nothing(rig: Rig, inbox: Inbox) -> None:
    async with rig.autocommit() as desk:
        with pytest.raises(errors.AutocommitHandle, match="commits every statement"):
            async with desk.once(inbox, "evt-1"):
                pass
        with pytest.raises(errors.AutocommitHandle):
            await desk.claim_many(inbox, [Message(id="evt-1")])
    assert rig.rows("SELECT count(*) FROM oncebox.ledger") == [(0,)]


async def test_a_transaction_inside_an_autocommit_handle_is_one_to_join(rig: Rig, inbox: Inbox) -> None:
    if rig.name.startswith("django"):
        pytest.skip("Django has atomic() for this")
    async with rig.autocommit() as desk:
        await desk.run("BEGIN")
        async with desk.once(inbox, "evt-1") as claim:
            assert claim.first
        await desk.run("COMMIT")
    assert not await deliver(rig, inbox)


async def test_nothing_is_committed_by_the_guard(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        async with desk.once(inbox, "evt-1") as claim:
            assert claim.first
            claim.result = {"entry": 1}
        assert rig.rows("SELECT count(*) FROM oncebox.ledger") == [(0,)]
    assert rig.rows("SELECT count(*) FROM oncebox.ledger") == [(1,)]


async def test_raw_commit_inside_the_block_is_caught(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded, match=r"evt-1.*billing.*after the block"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            await desk.run("COMMIT")


async def test_raw_rollback_inside_the_block_is_caught(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            await desk.run("ROLLBACK")
    assert await deliver(rig, inbox)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_new_transaction_after_the_end_of_ours_is_not_taken_for_it(
    rig: Rig, inbox: Inbox, end: str
) -> None:
    with pytest.raises(errors.TransactionEnded):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            await desk.run(end)
            await desk.run("BEGIN")
            await desk.run(INSERT)
    assert rig.effects() == 0


async def test_the_librarys_own_commit_inside_the_block_is_caught(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            if not desk.own_commit:
                pytest.skip("this handle has no commit() of its own")
            assert claim.first
            await desk.commit()


async def test_commit_and_a_next_statement_inside_the_block_are_caught(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            if not desk.own_commit:
                pytest.skip("this handle has no commit() of its own")
            assert claim.first
            await desk.commit()
            await desk.run(INSERT)


async def test_a_claim_in_a_new_transaction_does_not_vouch_for_the_old_one(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded, match="evt-outer"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-outer") as outer:
            assert outer.first
            await desk.run("COMMIT")
            await desk.run("BEGIN")
            async with desk.once(inbox, "evt-inner") as inner:
                assert inner.first


async def test_error_after_an_early_commit_says_that_the_claim_may_be_committed(
    rig: Rig, inbox: Inbox
) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            await desk.run("COMMIT")
            raise ZeroDivisionError
    assert "counts as done" in raised.value.__notes__[0]


async def test_swallowed_database_error_is_caught(rig: Rig, inbox: Inbox) -> None:
    # PostgreSQL aborts the transaction; SQLite goes on, except where it rolls back by itself.
    breaking = "SELECT 1/0" if rig.engine == "postgresql" else "INSERT OR ROLLBACK INTO once_only VALUES (1)"
    expected = errors.TransactionAborted if rig.engine == "postgresql" else errors.TransactionEnded
    if rig.engine == "sqlite":
        rig.write("CREATE TABLE once_only (n INTEGER PRIMARY KEY)")
        rig.write("INSERT INTO once_only VALUES (1)")
    with pytest.raises(expected):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            await desk.run(INSERT)
            with pytest.raises(Exception, match=r"(?i)division|unique"):
                await desk.run(breaking)
    assert rig.effects() == 0
    assert await deliver(rig, inbox)


async def test_swallowed_error_in_a_duplicates_block_would_take_an_earlier_claim_along(
    rig: Rig, inbox: Inbox
) -> None:
    if rig.engine == "sqlite":
        pytest.skip("SQLite's transaction goes on")
    assert await deliver(rig, inbox)
    with pytest.raises(errors.TransactionAborted, match="evt-1"):
        async with rig.transaction() as desk:
            async with desk.once(inbox, "evt-0") as earlier:
                assert earlier.first
            async with desk.once(inbox, "evt-1") as claim:
                assert not claim.first
                with pytest.raises(Exception, match="division"):
                    await desk.run("SELECT 1/0")
    assert await deliver(rig, inbox, "evt-0")


async def test_statement_that_fails_in_a_savepoint_of_its_own_is_fine(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        assert claim.first
        await desk.run("SAVEPOINT mine")
        with pytest.raises(Exception, match="no_such_table"):
            await desk.run("INSERT INTO no_such_table VALUES (1)")
        await desk.run("ROLLBACK TO SAVEPOINT mine")
        await desk.run(INSERT)
    assert not await deliver(rig, inbox)
    assert rig.effects() == 1


async def test_claim_that_a_savepoint_took_along_may_be_claimed_again(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        await desk.run("INSERT INTO shop_effect VALUES ('before')")
        await desk.run("SAVEPOINT mine")
        async with desk.once(inbox, "evt-1") as claim:
            assert claim.first
        await desk.run("ROLLBACK TO SAVEPOINT mine")
        async with desk.once(inbox, "evt-1") as claim:
            assert claim.first
    assert not await deliver(rig, inbox)


async def test_rollback_to_a_savepoint_before_the_claim_is_caught_inside_the_block(
    rig: Rig, inbox: Inbox
) -> None:
    with pytest.raises(errors.TransactionEnded):
        async with rig.transaction() as desk:
            await desk.run("INSERT INTO shop_effect VALUES ('before')")
            await desk.run("SAVEPOINT mine")
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                await desk.run("ROLLBACK TO SAVEPOINT mine")
                await desk.run(INSERT)


async def test_so_it_is_when_an_outer_claim_goes_on(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded, match="evt-inner"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-outer") as outer:
            assert outer.first
            await desk.run("SAVEPOINT mine")
            async with desk.once(inbox, "evt-inner") as inner:
                assert inner.first
                await desk.run("ROLLBACK TO SAVEPOINT mine")


async def test_so_it_is_when_another_claim_was_made_since(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.TransactionEnded, match="evt-inner"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-outer") as outer:
            assert outer.first
            await desk.run("SAVEPOINT mine")
            async with desk.once(inbox, "evt-inner") as inner:
                assert inner.first
                await desk.run("ROLLBACK TO SAVEPOINT mine")
                async with desk.once(inbox, "evt-third") as third:
                    assert third.first
                await desk.run(INSERT)


async def test_claims_inside_a_claim_are_fine(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as outer:
        assert outer.first
        for name in ("evt-2", "evt-3"):
            async with desk.once(inbox, name) as inner:
                assert inner.first
                await desk.run(INSERT)
    assert not await deliver(rig, inbox)
    assert rig.effects() == 2


async def test_nested_claim_of_the_same_key_is_refused(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.AlreadyClaimed, match=r"evt-1.*billing.*in one place"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as middleware:
            assert middleware.first
            async with desk.once(inbox, "evt-1"):
                pass
    assert await deliver(rig, inbox)


async def test_second_claim_in_the_same_transaction_is_refused(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.AlreadyClaimed):
        async with rig.transaction() as desk:
            async with desk.once(inbox, "evt-1") as middleware:
                assert middleware.first
            async with desk.once(inbox, "evt-1"):
                pass
    assert await deliver(rig, inbox)


async def test_second_claim_after_a_savepoint_is_refused_too(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.AlreadyClaimed):
        async with rig.transaction() as desk:
            await desk.run("INSERT INTO shop_effect VALUES ('before')")
            await desk.run("SAVEPOINT mine")
            async with desk.once(inbox, "evt-1") as middleware:
                assert middleware.first
            await desk.run("RELEASE SAVEPOINT mine")
            async with desk.once(inbox, "evt-1"):
                pass


async def test_claim_that_failed_in_this_transaction_is_unfinished_in_it(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        with pytest.raises(ZeroDivisionError):
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                raise ZeroDivisionError
        with pytest.raises(errors.UnfinishedClaim):
            async with desk.once(inbox, "evt-1"):
                pass


async def test_different_keys_nest_and_follow_each_other(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        async with desk.once(inbox, "evt-1") as first, desk.once(inbox, "evt-2") as second:
            assert first.first
            assert second.first
            second.result = 2
        async with desk.once(inbox, "evt-3") as third:
            assert third.first
        async with desk.once(Inbox("mailer"), "evt-1") as other:
            assert other.first
    for message_id in ("evt-1", "evt-2", "evt-3"):
        assert not await deliver(rig, inbox, message_id)


async def test_duplicate_in_a_transaction_with_writes_of_its_own_is_a_duplicate(
    rig: Rig, inbox: Inbox
) -> None:
    assert await deliver(rig, inbox)
    async with rig.transaction() as desk:
        await desk.run(INSERT)
        async with desk.once(inbox, "evt-1") as claim:
            assert not claim.first
        async with desk.once(inbox, "evt-2") as claim:
            assert claim.first
        async with desk.once(inbox, "evt-1") as claim:
            assert not claim.first


async def test_wrong_kind_of_with_names_the_right_one(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        block = inbox.once(desk.handle, "evt-1")
        if rig.awaits:
            with pytest.raises(TypeError, match=r"`async with inbox\.once"), block:
                pass
        else:
            with pytest.raises(TypeError, match=r"`with inbox\.once"):
                async with block:
                    pass
    assert rig.rows("SELECT count(*) FROM oncebox.ledger") == [(0,)]


async def test_block_is_entered_once(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        block = inbox.once(desk.handle, "evt-1")
        if rig.awaits:
            async with block as claim:
                assert claim.first
            with pytest.raises(errors.UsageError, match="every delivery"):
                await block.__aenter__()
        else:
            with block as claim:
                assert claim.first
            with pytest.raises(errors.UsageError, match="every delivery"):
                block.__enter__()
