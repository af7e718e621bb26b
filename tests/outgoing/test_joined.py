"""tx.publish and tx.send of a handler that joins a transaction of the caller's, on every kind of handle."""

import contextlib
from typing import Any

import pytest

from oncebox import App, Consumer, Message, Outcome, Status, Tx
from oncebox.errors import UsageError
from tests.guard.rigs import Desk, Rig
from tests.outgoing.kit import ScriptedSink

OUTBOX = "SELECT id, source, type, key FROM oncebox.outbox ORDER BY seq"
QUEUE = "SELECT consumer, message_id, type FROM oncebox.queue ORDER BY seq"
DEAD = "SELECT consumer, message_id, reason FROM oncebox.dead"


@pytest.fixture(autouse=True)
def empty(rig: Rig) -> None:
    for table in ("outbox", "queue", "dead", "ledger"):
        rig.write(f"DELETE FROM oncebox.{table}")


def billing(rig: Rig, *, sink: Any = None) -> Consumer:
    """A consumer whose handler says something to everybody, and keeps its Tx."""
    url = rig.url if "://" in rig.url else f"sqlite:///{rig.url}"
    app = App(url, sink=sink, source="shop")
    app.consumer("mailer", mode="stored")
    consumer = app.consumer("billing")

    def said(message: Message, tx: Tx) -> str:
        kept.append(tx)
        tx.send("mailer", "receipt", {"to": "ann"}, id=f"mail-{message.id}")
        tx.send("mailer", "receipt", {"to": message.id}, id="shared")
        return tx.publish("paid", {}, key="k", id=f"out-{message.id}")

    async def said_async(message: Message, tx: Tx) -> str:
        return said(message, tx)

    consumer.handler("captured")(said_async if rig.awaits else said)
    kept: list[Tx] = []
    consumer.kept = kept  # type: ignore[attr-defined]
    return consumer


async def join(consumer: Consumer, desk: Desk, id_: str = "evt-1") -> Outcome:
    message = Message(id=id_, type="captured", payload={})
    if desk.awaits:
        return await consumer.process(message, desk.handle)
    return consumer.process_sync(message, desk.handle)


async def test_what_it_sends_is_there_once_the_caller_has_committed(rig: Rig) -> None:
    consumer = billing(rig, sink=ScriptedSink())
    async with rig.transaction() as desk:
        outcome = await join(consumer, desk)
        assert (outcome.status, outcome.result) == (Status.PROCESSED, "out-evt-1")
        assert (rig.rows(OUTBOX), rig.rows(QUEUE)) == ([], [])
    async with rig.transaction() as desk:
        assert (await join(consumer, desk)).status is Status.DUPLICATE
    assert rig.rows(OUTBOX) == [("out-evt-1", "shop", "paid", "k")]
    assert rig.rows(QUEUE) == [("mailer", "mail-evt-1", "receipt"), ("mailer", "shared", "receipt")]
    with pytest.raises(UsageError, match=r"tx\.publish after the handler has returned"):
        consumer.kept[0].publish("paid", {})  # type: ignore[attr-defined]


async def test_it_is_not_there_when_the_caller_rolls_back(rig: Rig) -> None:
    consumer = billing(rig, sink=ScriptedSink())
    with contextlib.suppress(ZeroDivisionError):
        async with rig.transaction() as desk:
            await join(consumer, desk)
            raise ZeroDivisionError
    assert (rig.rows(OUTBOX), rig.rows(QUEUE)) == ([], [])


async def test_a_clash_is_buried_in_the_callers_transaction(rig: Rig) -> None:
    consumer = billing(rig, sink=ScriptedSink())
    for id_ in ("evt-1", "evt-2"):
        async with rig.transaction() as desk:
            await join(consumer, desk, id_)
    assert rig.rows(DEAD) == [("mailer", "shared", "conflict")]


async def test_without_a_sink_the_caller_is_told(rig: Rig) -> None:
    with pytest.raises(UsageError, match="needs somewhere to publish to"):
        async with rig.transaction() as desk:
            await join(billing(rig), desk)
    assert rig.rows(QUEUE) == []
