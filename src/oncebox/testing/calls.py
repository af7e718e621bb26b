"""What a test calls: deliver, crash, prove; each blocking, and on the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from oncebox import errors
from oncebox.app import App
from oncebox.consumer import Consumer
from oncebox.core.outcomes import Outcome, Status
from oncebox.message import Message
from oncebox.testing.bench import Bench, Parcel, consumer_of
from oncebox.testing.lines import Died
from oncebox.testing.loops import Loop
from oncebox.testing.prove import Proving, Wishes
from oncebox.testing.steps import WORDS, Fault, Steps
from oncebox.testing.story import Proof

T = TypeVar("T")
Target = App | Consumer


def prove_once(
    target: Target,
    *messages: Message,
    status: str = "processed",
    any_order: bool = False,
    ignore: Iterable[str] = (),
    allow: Iterable[str] = (),
    outside: Iterable[Any] = (),
    together: int = 4,
    lines_max: int = 40,
) -> Proof:
    """Show that these messages have one effect, whatever happens; NotOnce tells what went wrong.

    `target` is the app, or the consumer where the app has several for this type. `status` is how the
    messages end in a clean delivery (`processed`, `dead`, `discarded`). `any_order`: the rows must not depend
    on the messages' order. `ignore` names columns ("table.column") and tables that may differ, `allow`
    addresses, hosts, files and programs that a handler may use, `outside` recorders (lists, `HttpRecorder`)
    that must not see more than a clean delivery shows them.

    Works on the app's own database, which must be one for tests: its rows are put back again and again.
    Nothing else may be at work there. Afterwards it is as one clean delivery leaves it; after NotOnce, as it
    was before.
    """
    wishes = _wishes(status, any_order, ignore, allow, outside, together, lines_max)
    return _blocking(target, messages, lambda bench: Proving(bench, messages, wishes).prove())


async def prove_once_async(
    target: Target,
    *messages: Message,
    status: str = "processed",
    any_order: bool = False,
    ignore: Iterable[str] = (),
    allow: Iterable[str] = (),
    outside: Iterable[Any] = (),
    together: int = 4,
    lines_max: int = 40,
) -> Proof:
    """`prove_once` in an async test: `async def` handlers run on the test's own event loop."""
    wishes = _wishes(status, any_order, ignore, allow, outside, together, lines_max)
    return await _awaiting(target, messages, lambda bench: Proving(bench, messages, wishes).prove())


def deliver(target: Target, message: Message, *, times: int = 3) -> list[Outcome]:
    """Deliver a message so often, one after the other, and the outcome of each delivery.

    As a broker would: what is not acked is delivered again. A stored message is worked off before the next
    delivery, and its outcome is that of the work. Times that messages wait for pass at once.
    """
    return _blocking(target, (message,), lambda bench: _deliver(bench, message, times))


async def deliver_async(target: Target, message: Message, *, times: int = 3) -> list[Outcome]:
    """`deliver` in an async test."""
    return await _awaiting(target, (message,), lambda bench: _deliver(bench, message, times))


def crash_at(
    target: Target,
    message: Message,
    step: str | int = "commit",
    *,
    when: Literal["before", "after"] = "before",
) -> str:
    """Deliver a message to a process that dies before or after a step, and leave what it leaves.

    `step` is a number from 1, or the first of its kind: `begin`, `handle`, `commit`, `settle` (the ack) …
    Returns the death in words; UsageError when there is no such step. The next `deliver` is a new process's.
    """
    return _blocking(target, (message,), lambda bench: _crash(bench, message, step, when))


async def crash_at_async(
    target: Target,
    message: Message,
    step: str | int = "commit",
    *,
    when: Literal["before", "after"] = "before",
) -> str:
    """`crash_at` in an async test."""
    return await _awaiting(target, (message,), lambda bench: _crash(bench, message, step, when))


def _wishes(
    status: str,
    any_order: bool,
    ignore: Iterable[str],
    allow: Iterable[str],
    outside: Iterable[Any],
    together: int,
    lines_max: int,
) -> Wishes:
    for word, given in (("ignore", ignore), ("allow", allow)):
        if isinstance(given, str):
            raise TypeError(f"{word} takes several: {word}=({given!r},)")
    return Wishes(
        status=status,
        any_order=any_order,
        ignore=tuple(ignore),
        allow=tuple(allow),
        outside=tuple(outside),
        together=together,
        lines_max=lines_max,
    )


def _deliver(bench: Bench, message: Message, times: int) -> list[Outcome]:
    bench.prepare()
    key = (bench.consumer.name, message.source, message.id)
    outcomes: list[Outcome] = []
    for _ in range(times):
        parcel = Parcel(message)
        bench.live([parcel], Steps(), again=True)
        worked = bench.ends.pop(key, [])
        last = parcel.outcomes[-1]
        outcomes.append(worked[-1] if last.status is Status.STORED and worked else last)
    return outcomes


def _crash(bench: Bench, message: Message, step: str | int, when: Literal["before", "after"]) -> str:
    bench.prepare()
    steps = _Named(step, when)
    try:
        bench.live([Parcel(message)], steps)
    except Died:
        return f"died {when} {WORDS.get(steps.kinds[-1], '?')} (step {len(steps.kinds)})"
    names = ", ".join(kind.__name__.lower() for kind in steps.kinds)
    raise errors.UsageError(
        f"the delivery has no step {step!r}, and so it was not interrupted; it has: {names}"
    )


class _Named(Steps):
    """Dies at the first step of a kind."""

    def __init__(self, step: str | int, when: Literal["before", "after"]) -> None:
        super().__init__(Fault(when, step) if isinstance(step, int) else None)
        self._wanted = step
        self._when: Literal["before", "after"] = when

    def _enter(self, step: Any) -> int:
        if self.fault is None and type(step).__name__.lower() == str(self._wanted).lower():
            self.fault = Fault(self._when, len(self.kinds) + 1)
        return super()._enter(step)


@contextmanager
def _bench(target: Target, messages: tuple[Message, ...], loop: Loop) -> Iterator[Bench]:
    if not messages:
        raise TypeError("a message is needed: prove_once(app, Message(…))")
    bench = Bench(target, messages[0], loop)
    for message in messages[1:]:
        if consumer_of(target, message) is not bench.consumer:
            raise errors.UsageError("messages of one call go to one consumer")
    try:
        yield bench
    finally:
        bench.close()


def _app_of(target: Target) -> App:
    if isinstance(target, App):
        return target
    if isinstance(target, Consumer):
        return target.app
    raise TypeError(f"{target!r}: give the app, or one of its consumers")


def _blocking(target: Target, messages: tuple[Message, ...], work: Callable[[Bench], T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise TypeError("inside an event loop: use the form that ends in _async, and await it")
    loop = Loop()
    app = _app_of(target)
    try:
        with _bench(target, messages, loop) as bench:
            return work(bench)
    finally:
        loop.close(lambda: _let_go(app))


async def _awaiting(target: Target, messages: tuple[Message, ...], work: Callable[[Bench], T]) -> T:
    loop = Loop(asyncio.get_running_loop())

    def in_thread() -> T:
        with _bench(target, messages, loop) as bench:
            return work(bench)

    return await asyncio.to_thread(in_thread)


async def _let_go(app: App) -> None:
    """An async engine's pool holds connections of the loop that is about to end."""
    given = getattr(app.database, "given", None)
    if given is not None and given.async_engine is not None:
        await given.async_engine.dispose()
