"""What handlers do in a schedule: one effect each, and what their worker's word says."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg

from oncebox import Discard, Message, Tx
from oncebox.core.effects import Call
from oncebox.policy import Mode
from tests.crash.effects import AGAIN

if TYPE_CHECKING:
    from proof.schedules.world import World


def registry(world: World, mode: Mode) -> Any:
    """The handlers of one mode: short ones, and stored also long ones and calls to the outside."""
    consumer = world.app.consumer(mode, None, mode=mode)
    mark = "?" if world.is_sqlite else "%s"
    insert = f"INSERT INTO effects (consumer, source, message_id, pid) VALUES ({', '.join([mark] * 4)})"

    def handle(message: Message, tx: Tx, conn: Any) -> dict[str, str]:
        source = AGAIN if message.replay else message.source
        conn.execute(insert, (tx.consumer, source, message.id, 0))
        if world.sends:
            tx.publish("out", {}, id=f"{tx.consumer}/{message.id}", key="k")
        word = world.words.get(id(conn))
        if word == "discards":
            raise Discard("not wanted")
        if word == "fails":
            raise RuntimeError("it fails")
        return {"done": message.id}

    def lite(message: Message, tx: Tx, conn: sqlite3.Connection) -> dict[str, str]:
        return handle(message, tx, conn)

    def postgres(message: Message, tx: Tx, conn: psycopg.Connection) -> dict[str, str]:
        return handle(message, tx, conn)

    chosen: Any = lite if world.is_sqlite else postgres
    consumer.handler("t")(chosen)
    if mode == "stored":
        consumer.handler("long", long=True)(chosen)

        @consumer.effect("call", on_unknown="retry")
        def call(call: Call) -> dict[str, str]:
            world.calls.append(((call.consumer, "s", call.message.id), call.idempotency_key))
            return {"called": call.message.id}

    return consumer.registry
