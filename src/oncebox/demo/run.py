"""One run over a schedule: broker here, workers there, kills when they are due, then the count."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

from oncebox.brokers.memory import Memory, QueueStats
from oncebox.demo.crew import Crew, DemoFailed
from oncebox.demo.order import QUEUE, Order, Side
from oncebox.demo.place import Place
from oncebox.demo.schedule import MESSAGE_TYPE, WORKERS, Schedule
from oncebox.demo.verdict import Figures, counted
from oncebox.message import Message

LOOK_SECONDS = 0.001
"""How often the count of acks is looked at for the next kill."""
SHOW_SECONDS = 0.1
STALL_SECONDS = 30.0
"""Without any ack or kill for this long, the run is given up: it would not end."""
LAST_WORDS_LINES = 10
SECONDS_MAX = 60.0
SECONDS_PER_DELIVERY = 0.1
"""Bounds on a whole run; a disk that syncs in 30 ms stays far below."""


class Watcher(Protocol):
    """Who is told how a run goes on."""

    def began(self, side: Side, deliveries: int, kills: int) -> None: ...
    def moved(self, side: Side, acked: int, kills: int) -> None: ...
    def ended(self, side: Side, figures: Figures) -> None: ...


async def run(
    side: Side, schedule: Schedule, place: Place, folder: Path, watcher: Watcher, *, ack_first: bool = False
) -> Figures:
    """Take the schedule's messages through one kind of handler.

    DemoFailed when it does not come to an end; no worker is left then either.
    """
    place.create(side)
    config = folder / "no-policy.toml"
    config.touch()
    total = len(schedule.order)
    watcher.began(side, total, len(schedule.kills))
    limit = SECONDS_MAX + SECONDS_PER_DELIVERY * total
    try:
        async with asyncio.timeout(limit):
            memory = Memory()
            memory.queue(QUEUE)
            async with memory.serve() as address:
                order = Order(
                    side=side, address=address, place=place, config=str(config), ack_first=ack_first
                )
                crew = Crew(order, WORKERS, _log(folder, side), len(schedule.kills))
                seconds = await _work(side, schedule, memory, crew, watcher)
    except TimeoutError:
        raise DemoFailed(f"the {side} run took more than {limit:.0f} s and was given up") from None
    except BaseExceptionGroup as group:
        raise _first(group) from None
    figures = counted(
        schedule,
        place.count(side),
        deliveries=_stats(memory).delivered,
        kills=crew.kills,
        seconds=seconds,
    )
    watcher.ended(side, figures)
    return figures


def last_words(folder: Path, side: Side) -> str:
    """The end of what a run's workers logged: why something went wrong, when it did."""
    lines = _log(folder, side).read_text(errors="replace").splitlines()
    return "".join(f"  {line}\n" for line in lines[-LAST_WORDS_LINES:])


def _log(folder: Path, side: Side) -> Path:
    return folder / f"{side}.log"


async def _work(side: Side, schedule: Schedule, memory: Memory, crew: Crew, watcher: Watcher) -> float:
    """Seconds from the first message to the last ack. Process starts are in it only after kills."""
    async with asyncio.TaskGroup() as group:
        crew.start(group)
        watching = group.create_task(_watch(side, memory, crew, watcher))
        await crew.all_ready()
        began = time.monotonic()
        memory.put(QUEUE, *_messages(schedule))
        striking = group.create_task(_strike(schedule, memory, crew))
        await memory.drained(QUEUE)
        seconds = time.monotonic() - began
        # Kills that the last acks overtook fall on idle workers: what was asked for is done.
        await striking
        watching.cancel()
        await crew.stop()
    return seconds


def _messages(schedule: Schedule) -> list[Message]:
    sent = [Message(id=payment.id, type=MESSAGE_TYPE, payload=payment) for payment in schedule.payments]
    return [sent[index] for index in schedule.order]


async def _strike(schedule: Schedule, memory: Memory, crew: Crew) -> None:
    """Carry out the kills, each when it is due."""
    for kill in schedule.kills:
        # The broker tells nobody of acks, and looking often costs little: a thousand times a second.
        while _stats(memory).acked < kill.after_acks:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        await crew.kill(kill.slot, kill.delay_seconds)


async def _watch(side: Side, memory: Memory, crew: Crew, watcher: Watcher) -> None:
    """Tell the watcher, and end a run in which nothing moves any more."""
    seen, since = (-1, -1), time.monotonic()
    while True:
        now = (_stats(memory).acked, crew.kills)
        watcher.moved(side, *now)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STALL_SECONDS:
            raise DemoFailed(f"the {side} run stands still: {now[0]:,} deliveries acked, {now[1]} kills")
        await asyncio.sleep(SHOW_SECONDS)


def _stats(memory: Memory) -> QueueStats:
    return memory.stats()[QUEUE]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a task group; there is one, the others are its cancellations."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
