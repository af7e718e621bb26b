"""A claim, and the two kinds of block that hold one."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from oncebox.codec import decode_result, encode_result
from oncebox.core import guard
from oncebox.core.run import run, run_async
from oncebox.core.steps import Op
from oncebox.errors import ClaimError, UsageError
from oncebox.inbox.adapters.base import Adapter
from oncebox.message import MessageKey


class Claim:
    """What is known about one delivery: whether it is the first, and the result of the first.

    `bool(claim)` is `claim.first`. Looking at either (or at `state`) raises `error`, if there is one.
    """

    __slots__ = ("_answer", "_body", "_open", "_read", "_result", "error", "key")

    def __init__(self, key: MessageKey, answer: guard.Answer, *, block: bool) -> None:
        self.key = key
        self.error: ClaimError | None = answer.error
        """Set in batches only: why this message is neither new nor a plain duplicate."""
        self._answer = answer
        self._body = answer.body
        self._result = None if answer.body is None else decode_result(answer.body)
        self._open = block
        self._read = False

    def __repr__(self) -> str:
        return f"<Claim {self.key.id!r} ({'first' if self._answer.first else self._answer.state})>"

    @property
    def first(self) -> bool:
        """True for exactly one delivery of a message, as long as its transaction commits."""
        return self._looked_at().first

    def __bool__(self) -> bool:
        return self.first

    @property
    def state(self) -> str:
        """`new`, or what became of an earlier delivery: `done`, `waiting` (in the app's queue), `dead`
        (kept, see `reason`), `discarded`, `stale`, `suppressed`. Each of them may be acked."""
        return self._looked_at().state

    @property
    def observed(self) -> str:
        """With `Inbox(observe=True)`: `duplicate` or `conflict` where the block would not have run; else empty."""
        return self._answer.observed

    @property
    def reason(self) -> str:
        """Why the message is `dead`; empty otherwise."""
        return self._answer.reason

    @property
    def result(self) -> Any:
        """The first delivery's result, for it and for every duplicate alike; None if there is none.

        Setting it encodes it as JSON at once, and it reads back as a duplicate will read it. It is
        kept when the block ends. `UsageError` for what has no JSON form, for a duplicate, and
        outside of the block.
        """
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if not self._answer.first:
            raise UsageError("a duplicate has the first delivery's result; set it under: if claim.first")
        if not self._open:
            raise UsageError("a result is kept when the block of once() ends; set it inside")
        self._body = None if value is None else encode_result(value)
        self._result = None if self._body is None else decode_result(self._body)

    def _looked_at(self) -> guard.Answer:
        self._read = True
        if self.error is not None:
            raise self.error
        return self._answer


class _Block:
    """What both kinds of block share: the flow of each end."""

    def __init__(self, adapter: Adapter, schema: str, entry: guard.Entry, *, observe: bool = False) -> None:
        self._adapter = adapter
        self._schema = schema
        self._entry = entry
        self._observe = observe
        self._claim: Claim | None = None

    def _enter(self) -> Op[Claim]:
        if self._claim is not None:
            raise UsageError("this block was entered before; call once() for every delivery")
        answer = yield from guard.claim(self._schema, self._entry, observe=self._observe)
        self._claim = Claim(self._entry.key, answer, block=True)
        return self._claim

    def _leave(self, error: BaseException | None) -> Op[None]:
        claim = self._claim
        assert claim is not None
        claim._open = False
        body = claim._body if claim._answer.first and not claim.observed else None
        try:
            yield from guard.leave(claim._answer, claim.key, body, read=claim._read, error=error)
        finally:
            self._adapter.close()


class Once(_Block):
    """The block of a blocking handle: `with inbox.once(...) as claim`."""

    def __enter__(self) -> Claim:
        return run(self._enter(), self._adapter.perform)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._leave(error), self._adapter.perform)

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError("this handle is blocking: write `with inbox.once(...)`, not `async with`")

        async def __aexit__(self, *error: object) -> None: ...


class AsyncOnce(_Block):
    """The block of an async handle: `async with inbox.once(...) as claim`."""

    async def __aenter__(self) -> Claim:
        return await run_async(self._enter(), self._adapter.perform)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            # A coroutine that is being closed may not await; nobody is left to commit its work.
            self._adapter.close()
            return
        await run_async(self._leave(error), self._adapter.perform)

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError("this handle is async: write `async with inbox.once(...)`, not `with`")

        def __exit__(self, *error: object) -> None: ...
