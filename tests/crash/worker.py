"""A worker process as in production: an app with a source in another process, and handlers.

Told by a `Spec` what to do and what is to go wrong. It ends when it is killed, or in order on SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from oncebox import App, Backoff
from oncebox.brokers.contract import Delivery
from oncebox.brokers.remote import RemoteMemory, RemoteSource
from oncebox.core.steps import Step
from oncebox.drivers.session import Settings
from oncebox.policy import Policy
from oncebox.runtime import receiver, running
from oncebox.runtime.keeper import new_worker_id
from oncebox.runtime.members import connection_settings
from oncebox.runtime.performer import Performer
from oncebox.runtime.sweeper import Sweeper
from tests.crash import planted
from tests.crash.effects import Behaviour, register
from tests.crash.events import Events
from tests.waiting import eventually, eventually_async

QUEUE = "q"


class Trip(msgspec.Struct):
    """At the `nth` step of a kind, before or after it: `kill`, `stop`, or `wait` for the gate.

    The steps are the workers', or those of stored mode's receiver.
    """

    kind: str
    when: str
    what: str
    nth: int = 1
    receiver: bool = False


class Spec(msgspec.Struct, kw_only=True):
    """Everything a worker is told."""

    url: str
    variant: str
    address: str
    events: str
    gate: str
    consumer: str = "c"
    policy: dict[str, Any] = {}
    long: bool = False
    behaviour: dict[str, Any] = {}
    heartbeat_seconds: float = 0.2
    lapse_seconds: float = 3.0
    idle_seconds: float | None = None
    """What the server is told of idle transactions, where the policy's timeout does not say it."""
    trip: Trip | None = None
    plant: str = ""
    hold_at: int | None = None
    """After so many deliveries, ask for no more before the gate is open."""
    quiet: bool = False
    """Once it runs, write nothing but what deliveries need: no tallies, no retention."""
    sleep_after: int = 0
    """Stand still once the broker has heard so many acks."""


class LoggedSource(RemoteSource):
    """Writes every answer down before the broker can hear it."""

    def __init__(self, spec: Spec, events: Events) -> None:
        super().__init__(RemoteMemory(spec.address)._address, QUEUE)
        self.spec = spec
        self.events = events
        self.acks = 0
        self.deliveries = 0

    async def receive(self, limit: int) -> list[Delivery]:
        if self.spec.hold_at is not None and self.deliveries >= self.spec.hold_at:
            await eventually_async(Path(self.spec.gate).exists, 100)
        self.events.log("asks")
        deliveries = await super().receive(limit)
        self.deliveries += len(deliveries)
        self.events.log("received", count=len(deliveries))
        return deliveries

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._log("ack", deliveries)
        await super().ack(deliveries)
        self.acks += len(deliveries)
        if 0 < self.spec.sleep_after <= self.acks:
            await self.flush()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    async def nack(self, delivery: Delivery, delay_seconds: float) -> None:
        self._log("nack", [delivery])
        await super().nack(delivery, delay_seconds)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        self._log("release", deliveries)
        await super().release(deliveries)

    def _log(self, answer: str, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            resolved = self.identity.resolve(delivery)
            self.events.log(answer, consumer=self.spec.consumer, source=resolved.source, id=resolved.id)


def set_trip(spec: Spec, events: Events) -> None:
    """Put the wire across the steps of the consumer's own workers."""
    perform = Performer.__call__
    trip, count = spec.trip, 0
    assert trip is not None

    def strike(step: Step) -> None:
        events.log("tripped", step=trip.kind)
        if trip.what == "wait":
            eventually(Path(spec.gate).exists, 60)
        else:
            # To this very thread: sent to the process, another one may take it while this one goes on.
            how = signal.SIGKILL if trip.what == "kill" else signal.SIGSTOP
            signal.pthread_kill(threading.get_ident(), how)

    def tripping(self: Performer, step: Step) -> Any:
        nonlocal count
        ours = self.work.consumer == spec.consumer and (self.work.slot == 0) == trip.receiver
        if type(step).__name__ != trip.kind or not ours:
            return perform(self, step)
        count += 1
        if count != trip.nth:
            return perform(self, step)
        if trip.when == "before":
            strike(step)
            return perform(self, step)
        reply = perform(self, step)
        if hasattr(reply, "__await__"):
            return after(reply, step)
        strike(step)
        return reply

    async def after(reply: Any, step: Step) -> Any:
        value = await reply
        strike(step)
        return value

    Performer.__call__ = tripping  # type: ignore[method-assign]


def set_idle_bound(seconds: float) -> None:
    """Have sessions end sooner than the handler's own timeout, so that a handler may outlive its session."""

    def bounded(policy: Policy) -> Settings:
        return msgspec.structs.replace(connection_settings(policy), idle_timeout_seconds=seconds)

    for module in (running, receiver):
        vars(module)["connection_settings"] = bounded


def keep_quiet() -> None:
    """Have nothing written that no delivery asks for."""

    async def nothing(self: object) -> None:
        await asyncio.Event().wait()

    running.Running._maintain = nothing  # type: ignore[method-assign]
    Sweeper.run = nothing  # type: ignore[method-assign]


async def work(spec: Spec) -> None:
    """Run the app until SIGTERM."""
    events = Events(Path(spec.events))
    if spec.plant:
        planted.plant(spec.plant)
    if spec.trip is not None:
        set_trip(spec, events)
    if spec.idle_seconds is not None:
        set_idle_bound(spec.idle_seconds)
    if spec.quiet:
        keep_quiet()
    app = App(
        spec.url,
        heartbeat_seconds=spec.heartbeat_seconds,
        lapse_seconds=spec.lapse_seconds,
        drain_seconds=10,
    )
    policy = {"retry": Backoff(base_seconds=0.01), "concurrency": 1, **spec.policy}
    consumer = app.consumer(spec.consumer, LoggedSource(spec, events), **policy)
    register(consumer, spec.variant, Behaviour(events, spec.behaviour, Path(spec.gate)), long=spec.long)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    # Before it begins: a message may kill it before it says that it runs.
    worker = new_worker_id()
    events.log("named", worker=worker)
    async with app.running(worker=worker) as at_work:
        await eventually_async(at_work.keeper.first_beat.is_set, 60)
        events.log("running", worker=worker)
        await stop.wait()
    events.log("ended")


def main(spec: dict[str, Any]) -> None:
    """In the child."""
    logging.basicConfig(
        level=logging.DEBUG, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    asyncio.run(work(msgspec.convert(spec, Spec)))
