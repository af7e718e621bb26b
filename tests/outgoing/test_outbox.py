"""Outbox().publish in a transaction of the user's own, on every kind of handle."""

import contextlib

import pytest

from oncebox import Outbox
from oncebox.errors import AutocommitHandle, MessageError, TooLarge, UnknownHandle
from oncebox.message import PAYLOAD_BYTES_MAX
from tests.guard.rigs import Rig, settle

IDS = "SELECT id FROM oncebox.outbox ORDER BY seq"


@pytest.fixture(autouse=True)
def empty(rig: Rig) -> None:
    rig.write("DELETE FROM oncebox.outbox")


async def test_is_there_if_the_transaction_committed(rig: Rig) -> None:
    outbox = Outbox("shop")
    async with rig.transaction() as desk:
        await desk.run("INSERT INTO shop_effect VALUES ('x')")
        id_ = await settle(outbox.publish(desk.handle, "paid", {"n": 1}, key="k"))
        second = await settle(outbox.publish(desk.handle, "paid", b"\0raw", topic="t", delay=5))
        assert rig.rows(IDS) == []
    assert rig.rows(IDS) == [(id_,), (second,)]
    assert rig.rows("SELECT source, type, key, topic FROM oncebox.outbox ORDER BY seq") == [
        ("shop", "paid", "k", None), ("shop", "paid", None, "t")
    ]  # fmt: skip


async def test_is_not_there_if_it_rolled_back(rig: Rig) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with rig.transaction() as desk:
            await settle(Outbox().publish(desk.handle, "paid", {}, key="k", ordered=True))
            raise ZeroDivisionError
    assert rig.rows(IDS) == []


async def test_autocommit_is_refused(rig: Rig) -> None:
    async with rig.autocommit() as desk:
        with pytest.raises(AutocommitHandle, match="commits every statement by itself"):
            await settle(Outbox().publish(desk.handle, "paid", {}))
    assert rig.rows(IDS) == []


async def test_what_cannot_be_sent_leaves_the_transaction_as_it_was(rig: Rig) -> None:
    async with rig.transaction() as desk:
        await desk.run("INSERT INTO shop_effect VALUES ('x')")
        with pytest.raises(MessageError, match="payload of type object has no JSON form"):
            Outbox().publish(desk.handle, "paid", object())
        with pytest.raises(TooLarge, match="16,777,217 bytes; the limit is 16,777,216"):
            Outbox().publish(desk.handle, "paid", b"x" * (PAYLOAD_BYTES_MAX + 1))
    assert (rig.effects(), rig.rows(IDS)) == (1, [])


def test_something_else_than_a_handle_is_refused() -> None:
    with pytest.raises(UnknownHandle, match="str"):
        Outbox().publish("conn", "paid", {})  # type: ignore[call-overload]
