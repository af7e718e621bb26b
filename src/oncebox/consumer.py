"""A consumer: a name that scopes deduplication, a policy, handlers, and maybe a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from oncebox import errors
from oncebox.brokers.contract import Source
from oncebox.core.effects import EffectPolicy, OnUnknown
from oncebox.core.inline import stream
from oncebox.core.ordered import deliver_in_order
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.receiving import receive
from oncebox.core.run import run, run_async
from oncebox.core.steps import Op
from oncebox.core.work import Item, Work
from oncebox.drivers.session import Session
from oncebox.identity import Identity
from oncebox.inbox import Inbox
from oncebox.message import NAME_BYTES_MAX, Message, check_text
from oncebox.runtime.handlers import Handler, compile_handler
from oncebox.runtime.intake import Intake
from oncebox.runtime.joined import handle_joined, handle_joined_async, store_joined, store_joined_async
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.performer import Performer
from oncebox.runtime.registry import Registry
from oncebox.runtime.signatures import is_coroutine_function, name_of
from oncebox.runtime.sweeper import window_seconds
from oncebox.runtime.taking import line_of, take_all
from oncebox.runtime.watermarked import check_watermarked

if TYPE_CHECKING:
    from oncebox.app import App

F = TypeVar("F", bound=Callable[..., Any])


class Consumer:
    """One consumer: a name that scopes deduplication, a policy, handlers, and maybe a source."""

    def __init__(
        self, app: App, name: str, source: Source | None, identity: Identity | None, words: dict[str, Any]
    ) -> None:
        check_text("consumer name", name, NAME_BYTES_MAX)
        if not name:
            raise errors.ConfigError("a consumer needs a name: it scopes deduplication")
        self.app = app
        self.name = name
        self.source = source
        self.policy = app.policy_of(name, words)
        if self.policy.claim_check_bytes and app.store is None:
            raise errors.ConfigError(
                f"consumer {name!r}: claim_check_bytes needs a store to keep payloads in: App(…, store=FolderStore(…))"
            )
        if self.policy.keep_payload == "never" and not getattr(source, "delays", True):
            raise errors.ConfigError(
                f'consumer {name!r}: keep_payload="never" needs a source that can hold a message back for a while; '
                "from this one, what is to be tried again goes to the queue, with its payload"
            )
        if source is not None and not hasattr(source, "identity"):
            raise errors.ConfigError(
                f"consumer {name!r}: {source!r} is no source; give it one of a broker, as in broker.queue('payments')"
            )
        check_watermarked(name, self.policy, source, identity)
        self.registry = Registry(name)
        self.resetting: Handler | None = None
        identity = identity or (source.identity if source is not None else None)
        self.intake = Intake(name, self.policy, self.registry, identity, app.store)

    def handler(self, *types: str, long: bool = False) -> Callable[[F], F]:
        """Register a handler for these types; for everything when none is named.

        Parameters are served by annotation. `long=True` (stored mode) holds a lease instead of a row
        lock while the handler runs. HandlerError names the parameter that can't be served.
        """
        return self._register(types, batch=False, long=long)

    def batch_handler(self, *types: str) -> Callable[[F], F]:
        """Register a handler that takes a list of messages: one call, one transaction, set-based work.

        It returns one result per message, or None. Needs `batch` in the policy to get more than one.
        """
        return self._register(types, batch=True, long=False)

    def effect(
        self,
        *types: str,
        on_unknown: OnUnknown = "park",
        key_ttl: timedelta | float = timedelta(hours=24),
        reconcile: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]:
        """Register a call to the outside world (stored mode): it runs outside of any transaction.

        That it was begun is durable before the call, its result after. `Call.idempotency_key` is the same
        for every call of one message. After a crash in between the call is unknown: `on_unknown` calls
        again with the same key while the provider honours it (`"retry"`, within `key_ttl`), asks
        `reconcile(payload, call)` whether it happened (`"reconcile"`), or leaves it to a person (`"park"`).
        """
        if self.policy.mode != "stored":
            raise errors.HandlerError(f'consumer {self.name!r}: an effect needs mode="stored"')
        if not types:
            raise errors.HandlerError(f"consumer {self.name!r}: an effect names its types")
        if on_unknown not in get_args(OnUnknown):
            raise errors.HandlerError(
                f"on_unknown={on_unknown!r}: it is one of {', '.join(get_args(OnUnknown))}"
            )
        if (on_unknown == "reconcile") != (reconcile is not None):
            raise errors.HandlerError('on_unknown="reconcile" and reconcile=… go together')
        ttl = key_ttl.total_seconds() if isinstance(key_ttl, timedelta) else float(key_ttl)
        if not ttl > 0:
            raise errors.HandlerError(f"key_ttl={key_ttl!r}: how long the provider honours a key, above 0")
        policy = EffectPolicy(on_unknown=on_unknown, key_ttl_seconds=ttl, reconcile=reconcile)
        return self._register(types, batch=False, long=False, effect=policy)

    def reset(self, function: F) -> F:
        """Register what empties this consumer's tables before `oncebox replay` fills them again.

        It runs once where a rebuild begins, in the transaction that fixes what the rebuild covers: what is
        finished before is emptied and replayed, what is finished later is neither.
        """
        self.resetting = compile_handler(
            function, types=(), batch=False, long=False, database=self.app.handle_kinds()
        )
        return function

    def _register(
        self, types: tuple[str, ...], *, batch: bool, long: bool, effect: EffectPolicy | None = None
    ) -> Callable[[F], F]:
        if types and callable(types[0]):
            raise errors.HandlerError(f"consumer {self.name!r}: write @consumer.handler() with parentheses")
        if long and self.policy.mode != "stored":
            raise errors.HandlerError(
                f'consumer {self.name!r}: long=True needs mode="stored"; inline, the broker\'s own timeout rules'
            )
        if long and not types:
            raise errors.HandlerError(f"consumer {self.name!r}: a long handler names its types")

        def register(function: F) -> F:
            kinds = self.app.handle_kinds() if effect is None else frozenset()
            handler = compile_handler(
                function, types=types, batch=batch, long=long, database=kinds, effect=effect
            )
            hook = effect.reconcile if effect is not None else None
            if hook is not None and is_coroutine_function(hook) and not handler.is_async:
                raise errors.HandlerError(
                    f"handler {handler.name!r}: reconcile={name_of(hook)} is async def, and the effect is def"
                )
            self.registry.add(handler)
            return function

        return register

    def work(self, worker: str, slot: int) -> Work:
        """What a worker of this consumer works with."""
        return Work(
            self.name,
            self.app.database.queries,
            self.policy,
            worker=worker,
            slot=slot,
            types=self.registry.short_types(),
            long_types=self.registry.long_types(),
            effect_types=self.registry.effect_types(),
            handler=self.registry.find,
            outlets=self.app.outlets(self.name),
            lapse_seconds=self.app.lapse_seconds,
            spills=self.policy.mode == "inline" and not getattr(self.source, "delays", True),
            window_seconds=window_seconds(self.policy, self.source),
            alone=self.app.alone,
        )

    async def process(self, message: Message, handle: Any = None) -> Outcome:
        """Handle one message now (inline), or store it (stored mode).

        With a handle (see the guard) it joins the caller's transaction, and the caller commits.
        Raises DatabaseUnavailable when the database can't be reached: the outcome is then not known.
        """
        item = self._item(message, needs_async=True)
        if handle is not None:
            if self.policy.mode == "stored":
                return await store_joined_async(self.app.schema, self.name, self.policy, item, handle)
            return await handle_joined_async(
                self._inbox(), self.policy, item, handle, self.app.outlets(self.name)
            )
        state = self.app.async_state
        async with (await state.sessions(self.policy)).lend() as session:
            performer = self._performer(session, state.side, True)
            await run_async(self._flow(item), performer)
        outcome = self._counted(item)
        if self.app.tallies.is_due():
            await state.write_counts()
        return outcome

    def process_sync(self, message: Message, handle: Any = None) -> Outcome:
        """The same for plain `def` handlers, and outside an event loop."""
        item = self._item(message, needs_async=False)
        if handle is not None:
            if self.policy.mode == "stored":
                return store_joined(self.app.schema, self.name, self.policy, item, handle)
            return handle_joined(self._inbox(), self.policy, item, handle, self.app.outlets(self.name))
        state = self.app.sync_state
        with state.sessions(self.policy).lend() as session:
            performer = self._performer(session, state.side, False)
            run(self._flow(item), performer)
        outcome = self._counted(item)
        if self.app.tallies.is_due():
            state.write_counts()
        return outcome

    async def take(self, items: Sequence[Item]) -> None:
        """Handle or store what the intake made of deliveries that no source brought; sets their outcomes.

        What can't be handled is kept among the dead, as if a source had brought it. Raises
        DatabaseUnavailable when the database is lost: what has no outcome then may or may not be done.
        Plain `def` handlers are served by `take_sync`, in a thread.
        """
        state, line = self.app.async_state, line_of(items)
        async with (await state.sessions(self.policy)).lend() as session:
            work = self.work(self.app.worker, 0)
            try:
                await run_async(take_all(work, line), self._hands(work, line, session, state.side, True))
            except BaseException:
                line.put_back()
                raise
        self._count_all(items)
        if self.app.tallies.is_due():
            await state.write_counts()

    def take_sync(self, items: Sequence[Item]) -> None:
        """The same, blocking."""
        state, line = self.app.sync_state, line_of(items)
        with state.sessions(self.policy).lend() as session:
            work = self.work(self.app.worker, 0)
            try:
                run(take_all(work, line), self._hands(work, line, session, state.side, False))
            except BaseException:
                line.put_back()
                raise
        self._count_all(items)
        if self.app.tallies.is_due():
            state.write_counts()

    def _hands(
        self, work: Work, line: ThreadMailbox, session: Session, side: Any, is_async: bool
    ) -> Performer:
        return Performer(
            work,
            session,
            side,
            is_async=is_async,
            next_item=partial(line.take, loose=True) if self.policy.batch == 1 else lambda: None,
            settle=line.settled,
            load=self.app.load,
            watchdog=self.app.watchdog,
            meter=self.app.tallies.meter,
        )

    def _count_all(self, items: Sequence[Item]) -> None:
        for item in items:
            self._counted(item)

    def _inbox(self) -> Inbox:
        policy = self.policy
        return Inbox(self.name, self.app.schema, fingerprint=policy.fingerprint, observe=policy.observe)

    def _counted(self, item: Item) -> Outcome:
        assert item.outcome is not None
        self.app.tallies.add(self.name, item.message, item.outcome)
        return item.outcome

    def _item(self, message: Message, *, needs_async: bool) -> Item:
        if self.policy.mode == "inline" and self.registry.all() and self.registry.is_async != needs_async:
            right = "await consumer.process(…)" if self.registry.is_async else "consumer.process_sync(…)"
            raise TypeError(f"consumer {self.name!r}: its handlers are {_kinds(self.registry)}; use {right}")
        item = self.intake.from_message(message)
        if item.refusal is not None and isinstance(item.refusal[1], errors.TooLarge):
            raise item.refusal[1]
        return item

    def _flow(self, item: Item) -> Op[None]:
        work = self.work(self.app.worker, 0)
        if self.policy.mode == "stored":
            return _received(work, item)
        return stream(work, item) if item.lane is None else deliver_in_order(work, item)

    def _performer(self, session: Session, side: Any, is_async: bool) -> Performer:
        work = self.work(self.app.worker, 0)
        return Performer(
            work,
            session,
            side,
            is_async=is_async,
            load=self.app.load,
            watchdog=self.app.watchdog,
            meter=self.app.tallies.meter,
        )


def _received(work: Work, item: Item) -> Op[None]:
    for _ in range(10):
        left = yield from receive(work, [item])
        if not left:
            return
    item.outcome = Outcome(Status.IN_FLIGHT, delay_seconds=1.0)


def _kinds(registry: Registry) -> str:
    return "async def" if registry.is_async else "def"
