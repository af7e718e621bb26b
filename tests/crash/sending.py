"""What leaves a transaction: publications, sends, calls to the outside; and whether it left as it should."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import Any

from oncebox import Backoff
from oncebox.consumer import Consumer
from oncebox.core.effects import Call
from oncebox.core.relay import Relaying, lease, send, take
from oncebox.core.steps import Op, Publish
from oncebox.core.work import Work
from tests.crash.checker import Key, Tables
from tests.crash.effects import tables
from tests.crash.events import Events, key_of
from tests.crash.scenarios import Scenario


class NoSink:
    """What `App(sink=…)` asks for; these tests publish by themselves."""

    name = "none"


def relaying(work: Work, name: str, lease_seconds: float) -> Op[None]:
    """Publish until nothing is due; a slot that a dead relay had is free when its lease is over."""
    own = Relaying(work.queries, name, lease_seconds=lease_seconds, retry=Backoff(base_seconds=0))
    yield from lease(own)
    while rows := (yield from take(own)):
        yield from send(own, rows)
        yield from lease(own)


def free_slots(connection: Any) -> None:
    """No relay is there: what an earlier cell's had leased is over."""
    sqlite = isinstance(connection, sqlite3.Connection)
    table, never = ("oncebox_slot", "0") if sqlite else ("oncebox.slot", "'-infinity'")
    connection.execute(f"UPDATE {table} SET until = {never}")


def publish(step: Publish, events: Events) -> list[BaseException | None]:
    """A broker that takes everything."""
    for each in step.outgoing:
        events.log("published", id=each.message.id)
    return [None] * len(step.outgoing)


def register_call(
    consumer: Consumer, events: Events, on_unknown: Any, *, is_async: bool, doubtful: bool = False
) -> None:
    """Give the consumer a call to the outside, which is noted in the log alone. `doubtful`: the first call
    does not say whether it happened."""

    def call(call: Call) -> dict[str, str]:
        message = call.message
        told = {"consumer": call.consumer, "source": message.source, "id": message.id}
        is_first = not events.all("called")
        events.log("called", key=call.idempotency_key, **told)
        if doubtful and is_first:
            raise TimeoutError("no answer")
        return {"called": message.id}

    async def awaiting(call: Call) -> dict[str, str]:
        return calling(call)

    calling = call
    consumer.effect("t", on_unknown=on_unknown)(awaiting if is_async else call)


def outgoing(connection: Any, consumer: str, sends: str) -> list[Key] | None:
    """What handlers have sent along and is there: outbox rows, or what waits for the next consumer."""
    sqlite = isinstance(connection, sqlite3.Connection)
    prefix, mark = ("oncebox_", "?") if sqlite else ("oncebox.", "%s")
    if sends == "publish":
        text = f"SELECT id FROM {prefix}outbox WHERE id LIKE {mark} ORDER BY seq"
        rows = connection.execute(text, (f"{consumer}/%",)).fetchall()
        return [(consumer, "s", row[0].split("/")[1]) for row in rows]
    if sends == "send":
        rows = connection.execute(
            f"SELECT message_id FROM {prefix}queue WHERE consumer = {mark}", (f"{consumer}-next",)
        ).fetchall()
        return [(consumer, "s", row[0]) for row in rows]
    return None


def counted_in(connection: Any, consumer: str, scenario: Scenario, events: list[dict[str, Any]]) -> Tables:
    """What is there, with calls to the outside and what has left counted in."""
    found = tables(connection, consumer)
    out = outgoing(connection, consumer, scenario.sends)
    if scenario.runs.startswith("relay") and out is not None:
        left = {event["id"] for event in events if event["event"] == "published"}
        out = sorted({*out, *((consumer, "s", id_.split("/")[1]) for id_ in left)})
    called = {key_of(event) for event in events if event["event"] == "called"}
    unfinished = {row.key for row in found.queue} | {row.key for row in found.dead}
    # A call is made at least once: what counts is that a message which is done was called.
    return dataclasses.replace(found, effects=[*found.effects, *sorted(called - unfinished)], outgoing=out)


def wrong(scenario: Scenario, events: list[dict[str, Any]], *, refused: bool) -> list[str]:
    """What is wrong with what has left. `refused`: an error was injected, which says of a call that it
    did not happen."""
    calls = [event for event in events if event["event"] == "called"]
    words = []
    if len({event["key"] for event in calls}) > len({event["id"] for event in calls}):
        words.append("one message was called with several idempotency keys")
    decided = scenario.runs.startswith("settle")
    if scenario.sends == "park" and len(calls) > 1 and not refused and not decided:
        words.append("a call that may have happened was made again, though a person was to decide")
    first = list(dict.fromkeys(event["id"] for event in events if event["event"] == "published"))
    if first != sorted(first):
        words.append(f"I7: published in another order than written: {first}")
    return words
