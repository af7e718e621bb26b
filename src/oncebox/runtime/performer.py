"""Performs a flow's steps on real connections and real handlers, blocking or awaiting.

The same class serves both runners: on an async session the replies are awaitables, and the async
runner awaits them.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from oncebox import errors
from oncebox.core import steps
from oncebox.core.effects import Call as EffectCall
from oncebox.core.effects import idempotency_key
from oncebox.core.failure import RERUNS_MAX
from oncebox.core.steps import Call, Step
from oncebox.core.tracing import Tracing
from oncebox.core.work import Item, Tx, Work
from oncebox.drivers.session import Session, database_steps
from oncebox.message import Message
from oncebox.runtime.limit import Limit
from oncebox.runtime.meter import Meter
from oncebox.runtime.sessions import finished
from oncebox.runtime.signatures import is_coroutine_function
from oncebox.runtime.watchdog import Watchdog

CLAIM_CHECK = "oncebox-claim-check"
"""The header that names a payload kept in the app's store."""

Side = Callable[[Call], Any]


class Performer:
    """One worker's hands. `next_item`, `settle` and `keep` are the runtime's side of the bargain."""

    def __init__(
        self,
        work: Work,
        session: Session,
        side: Side,
        *,
        is_async: bool,
        next_item: Callable[[], Item | None] = lambda: None,
        settle: Callable[[Sequence[Item]], None] = lambda items: None,
        keep: Callable[[Item, bool], None] = lambda item, on: None,
        load: Callable[[str], bytes] | None = None,
        watchdog: Watchdog | None = None,
        meter: Meter | None = None,
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        self.work = work
        self.session = session
        self.load = load
        self.timeout_seconds = work.policy.timeout_seconds
        self._limit = Limit(self.timeout_seconds, task)
        self.watchdog = watchdog
        self.meter = meter
        self.hands: dict[type[Step], Callable[[Any], Any]] = {
            **database_steps(session),
            steps.Side: lambda step: side(step.call),
            steps.Ask: self._ask_async if is_async else self._ask,
            steps.Handle: self._handle_async if is_async else self._handle,
            steps.Next: lambda step: next_item(),
            steps.Settle: lambda step: settle(step.items),
            steps.Keep: lambda step: keep(step.item, step.on),
            steps.Flush: self._flush_async if is_async else self._flush,
        }
        if meter is not None:
            self.hands[steps.Handle] = self._timed_async if is_async else self._timed
        if (tracing := work.outlets.tracing) is not None:
            traced = self._traced_async if is_async else self._traced
            self.hands[steps.Handle] = partial(traced, tracing, self.hands[steps.Handle])

    def __call__(self, step: Step) -> Any:
        return self.hands[type(step)](step)

    def _arguments(self, items: tuple[Item, ...]) -> tuple[Any, Any, Any]:
        """Payload(s), message(s) and Tx as the handler's plan wants them."""
        handler = items[0].handler
        if handler is None:
            raise errors.UsageError(f"no handler for type {items[0].message.type!r}")
        first = items[0]
        message = first.message
        if first.whole is not None or message.headers:
            message = first.whole or self._whole(message)
        attempt = 1 + first.attempts + first.deaths
        if handler.effect is not None:
            key = idempotency_key(self.work, first)
            return (
                handler.decode(message.payload),
                message,
                EffectCall(self.work.consumer, message, key, attempt),
            )
        tx = None
        if handler.sends:
            tx = Tx(self.work.consumer, message, attempt, self.work.outlets)
            first.publications, first.sendings = tx.publications, tx.sendings
        if not handler.batch:
            return handler.decode(message.payload), message, tx
        messages = [message]
        for item in items[1:]:  # a run that was undone may have been another one's with this item first
            item.publications = item.sendings = ()
            messages.append(item.whole or self._whole(item.message))
        return [handler.decode(message.payload) for message in messages], messages, tx

    def _whole(self, message: Message) -> Message:
        """The message with its payload, wherever that is kept."""
        if not message.headers or (reference := message.header(CLAIM_CHECK)) is None:
            return message
        if self.load is None:
            raise errors.ConfigError(
                f"message {message.id!r} keeps its payload in a store, and this app has none: App(store=…)"
            )
        payload = self.load(reference.decode())
        headers = tuple(pair for pair in message.headers if pair[0] != CLAIM_CHECK)
        return Message(
            id=message.id,
            type=message.type,
            source=message.source,
            payload=payload,
            headers=headers,
            key=message.key,
            content_type=message.content_type,
            provenance=message.provenance,
            deliveries=message.deliveries,
            attempt=message.attempt,
            replay=message.replay,
        )

    def _handle(self, step: steps.Handle) -> Any:
        payload, message, tx = self._arguments(step.items)
        started = time.monotonic()
        if self.watchdog is not None:
            self.watchdog.enter(self.session, started + self.timeout_seconds)
        try:
            handler = step.items[0].handler
            if handler.effect is not None:
                result = handler.call(payload, message, tx, None)
            else:
                result = handler.call(payload, message, tx, self.session.handle(handler.handle))
                self.session.handled()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            if time.monotonic() - started > self.timeout_seconds:
                raise self._late(step) from error
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            if tx is not None:
                _close(tx)
            if self.watchdog is not None:
                self.watchdog.leave(self.session)
        if handler.effect is None and time.monotonic() - started > self.timeout_seconds:
            # An effect that came back late did come back: what is known is not made unknown.
            raise self._late(step)
        return result

    def _timed(self, step: steps.Handle) -> Any:
        started = time.monotonic()
        try:
            return self._handle(step)
        finally:
            self._took(step, started)

    async def _timed_async(self, step: steps.Handle) -> Any:
        started = time.monotonic()
        try:
            return await self._handle_async(step)
        finally:
            self._took(step, started)

    def _traced(self, tracing: Tracing, handle: Callable[[Any], Any], step: steps.Handle) -> Any:
        with tracing.handling(self.work.consumer, step.items, self._effect_key(step)):
            return handle(step)

    async def _traced_async(self, tracing: Tracing, handle: Callable[[Any], Any], step: steps.Handle) -> Any:
        with tracing.handling(self.work.consumer, step.items, self._effect_key(step)):
            return await handle(step)

    def _effect_key(self, step: steps.Handle) -> str | None:
        handler = step.items[0].handler
        is_effect = handler is not None and handler.effect is not None
        return idempotency_key(self.work, step.items[0]) if is_effect else None

    def _took(self, step: steps.Handle, started: float) -> None:
        if self.meter is not None:
            self.meter.time(self.work.consumer, step.items[0].message.type, time.monotonic() - started)

    async def _handle_async(self, step: steps.Handle) -> Any:
        payload, message, tx = self._arguments(step.items)
        handler = step.items[0].handler
        self._limit.start()
        try:
            if handler.effect is not None:
                return await handler.call(payload, message, tx, None)
            result = await handler.call(payload, message, tx, self.session.handle(handler.handle))
            looked = self.session.handled()
            if looked is not None:
                await finished(looked)
            return result
        except asyncio.CancelledError as error:
            if self._limit.end():
                raise self._late(step) from error
            if not self._limit.is_asked() and self._gave_up_too_often(step):
                raise errors.HandlerExit(
                    f"the handler let a cancellation out {RERUNS_MAX + 1} times, and nobody had cancelled it; catch "
                    "the CancelledError of tasks that it cancels itself"
                ) from error
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._limit.end()
            if tx is not None:
                _close(tx)

    def _gave_up_too_often(self, step: steps.Handle) -> bool:
        """A cancellation is nobody's failure, so it is not charged; but it is not for ever either."""
        message = step.items[0].message
        key = (message.source, message.id)
        times = self.work.cancels.pop(key, 0) + 1
        if times <= RERUNS_MAX:
            self.work.cancels[key] = times
        return times > RERUNS_MAX

    def _hook(self, step: steps.Ask) -> Callable[[], Any]:
        payload, _, call = self._arguments((step.item,))
        return partial(step.item.handler.effect.reconcile, payload, call)

    def _ask(self, step: steps.Ask) -> Any:
        """In a thread of its own: a hook that hangs is left behind, and the worker goes on."""
        answer: Future[Any] = Future()
        context, hook = contextvars.copy_context(), self._hook(step)

        def ask() -> None:
            try:
                answer.set_result(context.run(hook))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="oncebox-reconcile", daemon=True).start()
        if not wait([answer], self.timeout_seconds).done:
            raise self._late_hook(step)
        return answer.result()

    async def _ask_async(self, step: steps.Ask) -> Any:
        if not is_coroutine_function(step.item.handler.effect.reconcile):
            return await asyncio.to_thread(self._ask, step)
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                return await self._hook(step)()
        except TimeoutError as error:
            if limit.expired():
                raise self._late_hook(step) from error
            raise

    def _late_hook(self, step: steps.Ask) -> errors.HandlerTimeout:
        return errors.HandlerTimeout(
            f"consumer {self.work.consumer!r}: the reconcile hook of id {step.item.message.id!r} ran longer than "
            f"{self.timeout_seconds:g} s (policy word: timeout)"
        )

    def _explain(self, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            what = "called sys.exit()" if isinstance(error, SystemExit) else f"let {type(error).__name__} out"
            return errors.HandlerExit(f"the handler {what}; it ends its message's attempt, not the worker")
        return self.session.explain(error)

    def _late(self, step: steps.Handle) -> errors.HandlerTimeout:
        return errors.HandlerTimeout(
            f"consumer {self.work.consumer!r}: the handler of id {step.items[0].message.id!r} ran longer than "
            f"{self.timeout_seconds:g} s (policy word: timeout)"
        )

    def _vouch_call(self, step: steps.Flush) -> Call:
        rows = [{"consumer": c, "source": s, "message_id": i} for c, s, i in step.keys]
        return Call(self.work.queries.vouch, {"rows": rows})

    def _flush(self, step: steps.Flush) -> int:
        return int(self.session.vouch(self._vouch_call(step))[0][0])

    async def _flush_async(self, step: steps.Flush) -> int:
        rows = self.session.vouch(self._vouch_call(step))
        if not isinstance(rows, list):
            rows = await rows
        return int(rows[0][0])


def _close(tx: Any) -> None:
    """What a handler keeps of its Tx must not send after its transaction is over."""
    if type(tx) is Tx:
        tx.closed = True
