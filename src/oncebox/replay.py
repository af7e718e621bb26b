"""Replay from code: what `oncebox replay` does, for a program or a test.

    run = replay(page, reason="the page has a new column", reset=True)
    seen = shadow(page)

Both are for consumers of plain `def` handlers; `replay_async` and `shadow_async` for `async def`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from oncebox.consumer import Consumer
from oncebox.core.audit import Act
from oncebox.core.replay import replay as replaying
from oncebox.core.replay_terms import VERB, Chosen, Order, Run
from oncebox.core.replaying import Placed
from oncebox.core.run import run, run_async
from oncebox.core.shadow import Shadow
from oncebox.core.shadow import shadow as shadowing
from oncebox.core.steps import Op
from oncebox.core.work import Work
from oncebox.drivers.session import Session
from oncebox.errors import HandlerError, UsageError
from oncebox.message import Message
from oncebox.runtime.performer import Performer

__all__ = ["Chosen", "Order", "Run", "Shadow", "replay", "replay_async", "shadow", "shadow_async"]

T = TypeVar("T")


def order(
    consumer: Consumer,
    *,
    reason: str,
    by: str = "",
    chosen: Chosen | None = None,
    reset: bool | None = None,
    **words: Any,
) -> Order:
    """What is asked for: `words` are those of `Order`. UsageError without a reason, and for a rebuild of a consumer
    that has a reset unless it is said whether that is to run."""
    if not reason.strip():
        raise UsageError("say why: a replay is on record with who and why")
    chosen = chosen or Chosen()
    handler = consumer.resetting if consumer.policy.replay == "rebuild" else None
    if handler is not None and reset is None:
        raise UsageError(
            f"consumer {consumer.name!r} has a reset, which empties its tables: what is kept comes again, and what was "
            "deleted by retention, or handled before payloads were kept, does not. Say --reset or --no-reset (in code: "
            "reset=True or False); --shadow tells how many come"
        )
    if handler is not None and consumer.registry.all() and handler.is_async != consumer.registry.is_async:
        raise HandlerError(
            f"consumer {consumer.name!r}: its reset and its handlers are not of one kind (def, async def)"
        )
    act = Act(verb=VERB, who=by, reason=reason.strip(), filter=chosen.words())
    words = {"batch": consumer.policy.batch, **words}
    return Order(act=act, chosen=chosen, reset=handler if reset else None, **words)


def replay(consumer: Consumer, *, reason: str, by: str = "", **words: Any) -> Run:
    """Handle again what is kept, under the consumer's policy; see `oncebox.core.replay.replay`."""
    asked = order(consumer, reason=reason, by=by, **words)
    return perform(consumer, lambda work: replaying(work, asked))


async def replay_async(consumer: Consumer, *, reason: str, by: str = "", **words: Any) -> Run:
    """The same for `async def` handlers."""
    asked = order(consumer, reason=reason, by=by, **words)
    return await perform_async(consumer, lambda work: replaying(work, asked))


def shadow(consumer: Consumer, **words: Any) -> Shadow:
    """What a replay would change; nothing is changed."""
    asked = order(consumer, reason="shadow", reset=False, **words)
    return perform(consumer, lambda work: shadowing(work, asked))


async def shadow_async(consumer: Consumer, **words: Any) -> Shadow:
    """The same for `async def` handlers."""
    asked = order(consumer, reason="shadow", reset=False, **words)
    return await perform_async(consumer, lambda work: shadowing(work, asked))


def perform(consumer: Consumer, flow: Callable[[Work], Op[T]]) -> T:
    """Run a flow with this consumer's handlers on a blocking connection."""
    state = consumer.app.sync_state
    with state.sessions(consumer.policy).lend() as session:
        work = consumer.work(consumer.app.worker, 0)
        return run(flow(work), _hands(consumer, work, session, state.side, is_async=False))


async def perform_async(consumer: Consumer, flow: Callable[[Work], Op[T]]) -> T:
    """The same on an async one."""
    state = consumer.app.async_state
    async with (await state.sessions(consumer.policy)).lend() as session:
        work = consumer.work(consumer.app.worker, 0)
        return await run_async(flow(work), _hands(consumer, work, session, state.side, is_async=True))


def _hands(consumer: Consumer, work: Work, session: Session, side: Any, *, is_async: bool) -> Performer:
    app = consumer.app
    return Performer(work, session, side, is_async=is_async, load=app.load, watchdog=app.watchdog)


def placed(consumer: Consumer, messages: Iterator[Message]) -> Iterator[Placed]:
    """Messages that are not the ledger's, numbered from 1."""
    for number, message in enumerate(messages, 1):
        yield placed_by(consumer, number, msgspec.structs.replace(message, replay=True))


def placed_by(consumer: Consumer, place: int, message: Message) -> Placed:
    """A message at its place, with its handler."""
    return Placed(place, consumer.intake.from_message(message))
