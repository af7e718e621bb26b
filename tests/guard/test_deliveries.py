"""What the guard promises for deliveries, on every kind of handle: once, whatever happens between."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import pytest

from oncebox import errors
from oncebox.inbox import Inbox
from tests.guard.rigs import Rig


class HandlerBroke(Exception):
    """What a user's own code might raise."""


async def deliver(rig: Rig, inbox: Inbox, message_id: str = "evt-1", **words: object) -> bool:
    """One delivery with one effect, in a transaction of its own; whether it was the first."""
    async with rig.transaction() as desk, desk.once(inbox, message_id, **words) as claim:
        if claim.first:
            await desk.run("INSERT INTO shop_effect VALUES ('done')")
    return claim.first


async def test_first_delivery_runs_and_the_second_is_a_duplicate(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox)
    assert not await deliver(rig, inbox)
    assert rig.effects() == 1


class Told(str, Enum):  # noqa: UP042 - whose text is not its value, unlike StrEnum's
    SHOP = "shop"
    PAID = "paid"
    FIRST = "evt-1"


async def test_an_enums_member_is_the_text_that_it_equals(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, Told.FIRST, source=Told.SHOP, type=Told.PAID, payload=b"1")
    assert not await deliver(rig, inbox, Told.FIRST, source=Told.SHOP, type=Told.PAID, payload=b"1")
    assert not await deliver(rig, inbox, "evt-1", source="shop", type="paid", payload=b"1")
    assert rig.effects() == 1


async def test_rolled_back_delivery_leaves_nothing_and_the_next_is_the_first_again(
    rig: Rig, inbox: Inbox
) -> None:
    with pytest.raises(HandlerBroke):
        async with rig.transaction() as desk:
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                await desk.run("INSERT INTO shop_effect VALUES ('half')")
            raise HandlerBroke
    assert rig.effects() == 0
    assert await deliver(rig, inbox)
    assert rig.effects() == 1


async def test_the_blocks_own_error_passes_unchanged(rig: Rig, inbox: Inbox) -> None:
    error = HandlerBroke("mine")
    with pytest.raises(HandlerBroke) as raised:
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.first
            raise error
    assert raised.value is error
    assert not hasattr(error, "__notes__")
    assert await deliver(rig, inbox)


async def test_sixteen_deliveries_at_once_have_one_first(rig: Rig, inbox: Inbox) -> None:
    if rig.awaits:
        gate = asyncio.Barrier(16)

        async def task() -> bool:
            await gate.wait()
            return await deliver(rig, inbox)

        firsts = await asyncio.gather(*(task() for _ in range(16)))
    else:
        barrier = threading.Barrier(16)

        def thread() -> bool:
            barrier.wait(timeout=10)
            return asyncio.run(deliver(rig, inbox))

        with ThreadPoolExecutor(16) as pool:
            firsts = [future.result() for future in [pool.submit(thread) for _ in range(16)]]
    assert sorted(firsts) == [False] * 15 + [True]
    assert rig.effects() == 1


async def test_two_consumers_each_get_the_message_once(rig: Rig) -> None:
    assert await deliver(rig, Inbox("billing"))
    assert await deliver(rig, Inbox("mailer"))
    assert not await deliver(rig, Inbox("billing"))
    assert rig.effects() == 2


async def test_sources_are_namespaces_and_keys_are_never_joined(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, "b", source="a:")
    assert await deliver(rig, inbox, ":b", source="a")
    assert await deliver(rig, inbox, "b", source="")
    assert not await deliver(rig, inbox, "b", source="a:")


async def test_ids_are_compared_byte_by_byte(rig: Rig, inbox: Inbox) -> None:
    for first in (True, False):
        async with rig.transaction() as desk:
            for message_id in ("abc", "ABC", "abc ", "e\u0301", "\u00e9", "it's", 'q"', "50%s", ":id", "\\x"):
                async with desk.once(inbox, message_id) as claim:
                    assert claim.first is first, message_id


async def test_error_that_is_caught_outside_and_committed_is_unfinished_at_the_next_delivery(
    rig: Rig, inbox: Inbox
) -> None:
    async with rig.transaction() as desk:
        with pytest.raises(HandlerBroke):
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                await desk.run("INSERT INTO shop_effect VALUES ('half')")
                raise HandlerBroke
    assert rig.effects() == 1
    with pytest.raises(errors.UnfinishedClaim, match=r"evt-1.*billing.*inbox\.resolve"):
        await deliver(rig, inbox)


@pytest.mark.parametrize("done", [True, False])
async def test_unfinished_claim_is_resolved_by_a_person(rig: Rig, inbox: Inbox, done: bool) -> None:
    async with rig.transaction() as desk:
        with pytest.raises(HandlerBroke):
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                raise HandlerBroke
    async with rig.transaction() as desk:
        await desk.resolve(inbox, "evt-1", done=done)
    assert await deliver(rig, inbox) is not done
    with pytest.raises(errors.UsageError, match="nothing to resolve"):
        async with rig.transaction() as desk:
            await desk.resolve(inbox, "evt-1", done=done)


async def test_block_that_never_looks_is_an_error_and_not_a_silent_double(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(errors.ClaimUnread, match=r"evt-1.*if claim\.first"):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1"):
            await desk.run("INSERT INTO shop_effect VALUES ('unread')")
    assert rig.effects() == 0
    assert await deliver(rig, inbox)
    with pytest.raises(errors.ClaimUnread):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1"):
            pass


async def test_unread_block_that_is_committed_all_the_same_is_unfinished(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        with pytest.raises(errors.ClaimUnread):
            async with desk.once(inbox, "evt-1"):
                pass
    with pytest.raises(errors.UnfinishedClaim):
        await deliver(rig, inbox)


async def test_error_in_an_unread_block_is_the_blocks_own(rig: Rig, inbox: Inbox) -> None:
    with pytest.raises(HandlerBroke):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1"):
            raise HandlerBroke


async def test_truth_of_a_claim_is_whether_it_is_the_first(rig: Rig, inbox: Inbox) -> None:
    for expected in (True, False):
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert bool(claim) is expected
