"""The guard's public face: an inbox, by the name of its consumer."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, overload

from oncebox.core import guard
from oncebox.core.run import run, run_async
from oncebox.core.steps import Op
from oncebox.engines.queries import check_schema_name
from oncebox.errors import ConfigError, MessageError, TooLarge
from oncebox.inbox.adapters import adapter_for
from oncebox.inbox.claims import AsyncOnce, Claim, Once
from oncebox.inbox.protocols import AsyncHandle, SyncHandle
from oncebox.message import (
    ID_BYTES_MAX,
    NAME_BYTES_MAX,
    TYPE_BYTES_MAX,
    Message,
    MessageKey,
    are_short,
    check_id,
    check_text,
    encode_payload,
)
from oncebox.policy import Fingerprint

BATCH_MAX = 10_000


class Inbox:
    """Claims messages for one consumer, in transactions that the caller already has.

    It opens nothing, and never begins, commits or retries. The consumer's name scopes
    deduplication: two consumers each get a message once. `ConfigError` for a name that can't be one.
    With `observe=True` nothing is suppressed, for adoption: `claim.first` is True for duplicates and conflicts
    too, they are counted (`oncebox status`), and `claim.observed` tells which it was.
    """

    def __init__(
        self,
        consumer: str,
        schema: str = "oncebox",
        *,
        fingerprint: Fingerprint = "raw",
        observe: bool = False,
    ) -> None:
        try:
            check_text("consumer", consumer, NAME_BYTES_MAX)
        except MessageError as error:
            raise ConfigError(f"consumer={consumer!r}: a name of at most {NAME_BYTES_MAX} bytes") from error
        if not consumer:
            raise ConfigError("a consumer needs a name: deduplication is per consumer")
        self.consumer = consumer
        self.schema = check_schema_name(schema)
        self.fingerprint: Fingerprint = fingerprint
        self.observe = observe

    def __repr__(self) -> str:
        return f"Inbox({self.consumer!r})"

    @overload
    def once(
        self, handle: SyncHandle, message_id: str, *, source: str = "", type: str = "", payload: Any = None
    ) -> Once: ...
    @overload
    def once(
        self, handle: AsyncHandle, message_id: str, *, source: str = "", type: str = "", payload: Any = None
    ) -> AsyncOnce: ...
    def once(
        self,
        handle: Any,
        message_id: str,
        *,
        source: str = "",
        type: str = "",  # noqa: A002 - the domain's word
        payload: Any = None,
    ) -> Once | AsyncOnce:
        """A block that holds the claim of one delivery, in the transaction of `handle`.

        `with` or `async with`, by the handle's kind. `claim.first` is True for the first delivery
        whose transaction commits; while another transaction has the key, this one waits for it.
        `source` names the logical producer. `type` and `payload` (bytes, text, or anything JSON
        can say; None for "not given") are compared with those of the first delivery.

        On entering: `AutocommitHandle`, `SchemaMissing`, `PayloadConflict` (same id, other payload
        or type), `UnfinishedClaim` (an earlier block raised and was committed all the same),
        `AlreadyClaimed` (this transaction has the key), `ClaimLost` (a race; try again).
        On leaving: `ClaimUnread`, `TransactionEnded`, `TransactionAborted`. What the block raises
        passes unchanged, and so do the driver's own errors.
        """
        adapter = adapter_for(handle)
        entry = self._entry(message_id, source, type, payload)
        return (AsyncOnce if adapter.awaits else Once)(adapter, self.schema, entry, observe=self.observe)

    @overload
    def claim_many(self, handle: SyncHandle, messages: Iterable[Message]) -> list[Claim]: ...
    @overload
    def claim_many(self, handle: AsyncHandle, messages: Iterable[Message]) -> Awaitable[list[Claim]]: ...
    def claim_many(self, handle: Any, messages: Iterable[Message]) -> list[Claim] | Awaitable[list[Claim]]:
        """One claim per message, in order, by one statement; awaited where the handle is async.

        A message that is in conflict, unfinished or already claimed has its `claim.error` set, and
        looking at its `first` raises it; the others can go on. A second delivery in the same batch
        is a duplicate of the first. There is no block, so nothing is checked at an end: not that
        claims were read, nor that the transaction stayed the same; a body that raises marks
        nothing, and there are no results. `AutocommitHandle`, `SchemaMissing` and `ClaimLost` are raised, and
        `TooLarge` beyond 10,000 messages.
        """
        adapter = adapter_for(handle)
        entries = [self._entry(one.id, one.source, one.type, one.payload) for one in messages]
        if len(entries) > BATCH_MAX:
            raise TooLarge(f"{len(entries):,} messages in one batch; the limit is {BATCH_MAX:,}")

        def claims() -> Op[list[Claim]]:
            answers = (
                (yield from guard.claim_many(self.schema, entries, observe=self.observe)) if entries else []
            )
            pairs = zip(entries, answers, strict=True)
            return [Claim(entry.key, answer, block=False) for entry, answer in pairs]

        return run_async(claims(), adapter.perform) if adapter.awaits else run(claims(), adapter.perform)

    @overload
    def resolve(self, handle: SyncHandle, message_id: str, *, source: str = "", done: bool) -> None: ...
    @overload
    def resolve(
        self, handle: AsyncHandle, message_id: str, *, source: str = "", done: bool
    ) -> Awaitable[None]: ...
    def resolve(
        self, handle: Any, message_id: str, *, source: str = "", done: bool
    ) -> Awaitable[None] | None:
        """The way out of `UnfinishedClaim`, once someone has looked at what the failed block wrote.

        With `done=True` the message counts as done, with `done=False` its next delivery is the
        first again. Takes effect when the caller commits. `UsageError` if it is not unfinished.
        """
        adapter = adapter_for(handle)
        op = guard.resolve(self.schema, self._entry(message_id, source, "", None).key, done)
        return run_async(op, adapter.perform) if adapter.awaits else run(op, adapter.perform)

    def _entry(self, message_id: str, source: str, kind: str, payload: Any) -> guard.Entry:
        if not are_short(message_id, source, kind):  # then one by one, to say which it is
            check_id(message_id)
            check_text("source", source, ID_BYTES_MAX)
            check_text("type", kind, TYPE_BYTES_MAX)
        body = None if payload is None else encode_payload(payload)
        key = MessageKey(self.consumer, source, message_id)
        return guard.Entry(key, kind, body, self.fingerprint)
