"""From a user's function to a plan of calling it, made once, at registration.

A parameter gets what it annotates: the payload, the `Message`, the `Tx`, or the database handle.
What can't be served is refused here, by name, and not by the first message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import CoroutineType
from typing import Any, get_args, get_origin

import msgspec

from oncebox.codec import Decode, decoder
from oncebox.codec.payloads import shown
from oncebox.core.effects import Call as EffectCall
from oncebox.core.effects import EffectPolicy
from oncebox.core.work import Tx
from oncebox.errors import HandlerError
from oncebox.message import Message
from oncebox.runtime.handles import HANDLE_NAMES, HandleKind, bare, fits, handle_kind, without_none
from oncebox.runtime.signatures import Parameter, check_function, is_coroutine_function, name_of, parameters

__all__ = ["Call", "HandleKind", "Handler", "compile_handler", "handle_kind"]

Call = Callable[[Any, Any, Any, Any], Any]
_PAYLOAD, _MESSAGE, _TX, _HANDLE = range(4)
_KINDS = ("payload", "Message", "Tx", "connection or session")


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function, ready to be called for each message."""

    name: str
    types: tuple[str, ...]
    """The types it takes; none is every type."""
    is_async: bool
    batch: bool
    """Takes lists: `call` gets the decoded payloads and the messages of a whole batch."""
    long: bool
    effect: EffectPolicy | None
    """Set for a call to the outside world, which runs outside of any transaction."""
    sends: bool
    """Takes a `Tx`; who does not can't send anything, and needs none."""
    handle: HandleKind | None
    """The kind of connection or session it annotates, or None."""
    decode: Decode
    """One message's payload, as annotated; `UndecodablePayload` if it does not fit. None if not asked for."""
    call: Call
    """`call(payload, message, tx, handle)`: the result, or an awaitable of it for an async handler."""


def compile_handler(
    function: Callable[..., Any],
    *,
    types: tuple[str, ...],
    batch: bool,
    long: bool,
    database: frozenset[HandleKind],
    effect: EffectPolicy | None = None,
) -> Handler:
    """The plan for `function`; `database` says which handles the app can give.

    Raises `HandlerError` naming the function, the parameter, and what could be annotated instead.
    """
    name = name_of(function)
    try:
        check_function(function, types)
        is_async = is_coroutine_function(function)
        plan = _Plan(is_async, batch, database, EffectCall if effect is not None else Tx)
        plan.serve(parameters(function))
    except HandlerError as error:
        raise HandlerError(f"handler {name!r}: {error}") from None
    return Handler(
        name=name,
        types=types,
        is_async=is_async,
        batch=batch,
        long=long,
        effect=effect,
        sends=_TX in plan.served,
        handle=plan.handle,
        decode=plan.decode or _unasked,
        call=_caller(function, plan, name),
    )


class _Plan:
    """What goes where: argument numbers by position, then by name."""

    def __init__(
        self,
        is_async: bool,
        batch: bool,
        database: frozenset[HandleKind],
        context: type[Tx] | type[EffectCall],
    ) -> None:
        self.is_async = is_async
        self.context = context
        self.batch = batch
        self.database = database
        self.decode: Decode | None = None
        self.positions: list[int] = []
        self.names: dict[str, int] = {}
        self.served: dict[int, str] = {}
        self.handle: HandleKind | None = None

    def serve(self, parameters: Sequence[Parameter]) -> None:
        # A default steps back for a parameter that must have the payload: a `note: str = ""`
        # beside it is the function's own.
        payload_taken = any(p.required and self._source(p) == _PAYLOAD for p in parameters)
        skipped = False
        for parameter in parameters:
            source = self._source(parameter)
            if source is None or (source == _PAYLOAD and not parameter.required and payload_taken):
                skipped = True
                continue
            self._serve(parameter, source)
            if parameter.by_position and not skipped:
                self.positions.append(source)
            elif parameter.by_name:
                self.names[parameter.name] = source
            else:
                raise HandlerError(
                    f"parameter {parameter.name!r} is positional-only, behind one that keeps its default; "
                    "swap the two"
                )
        if self.batch and not self.served.keys() & {_PAYLOAD, _MESSAGE}:
            raise HandlerError(
                "a batch handler takes its messages as a list: annotate list[X] or list[Message]"
            )

    def _source(self, parameter: Parameter) -> int | None:
        """Which argument the annotation asks for; None for one that keeps its default."""
        if parameter.annotation is inspect.Parameter.empty:
            if not parameter.required:
                return None
            hint = " (a method is registered on an instance)" if parameter.name in ("self", "cls") else ""
            raise HandlerError(f"parameter {parameter.name!r} has no annotation{hint}; {self._choices()}")
        annotation = without_none(parameter.annotation)
        if annotation is self.context:
            return _TX
        if annotation in (Tx, EffectCall):
            raise HandlerError(
                f"parameter {parameter.name!r}: an effect is outside of any transaction, so it takes Call and not Tx"
                if self.context is EffectCall
                else f"parameter {parameter.name!r}: Call is for effects; a handler takes Tx"
            )
        if handle_kind(annotation) is not None:
            return _HANDLE
        if self.batch:
            element = _element(annotation)
            if bare(element) is Message:
                return _MESSAGE
            if element is not None or parameter.required:
                return _PAYLOAD
            return None
        if annotation is Message:
            return _MESSAGE
        if parameter.required or _is_payload(parameter.annotation):
            return _PAYLOAD
        return None

    def _serve(self, parameter: Parameter, source: int) -> None:
        decode = self._decoder(parameter) if source == _PAYLOAD else self.decode
        if source in self.served:
            raise HandlerError(
                f"parameters {self.served[source]!r} and {parameter.name!r} both ask for "
                f"the {_KINDS[source]}; keep one"
            )
        self.served[source] = parameter.name
        self.decode = decode
        if source == _HANDLE:
            self._check_handle(parameter)

    def _check_handle(self, parameter: Parameter) -> None:
        kind = handle_kind(parameter.annotation)
        assert kind is not None
        if kind in self.database and fits(kind, self.is_async):
            self.handle = kind
            return
        if kind in self.database:
            colour = "async def" if self.is_async else "def"
            why = f"can't be used in {colour}"
        else:
            why = "is not what this app's database has"
        raise HandlerError(f"parameter {parameter.name!r}: {HANDLE_NAMES[kind]} {why}; {self._handles()}")

    def _decoder(self, parameter: Parameter) -> Decode:
        annotation = parameter.annotation
        if self.batch:
            annotation = _element(without_none(annotation))
            if annotation is None:
                raise HandlerError(
                    f"parameter {parameter.name!r}: a batch handler takes list[X] or list[Message], "
                    f"not {shown(parameter.annotation)}"
                )
        elif bare(_element(without_none(annotation))) is Message:
            raise HandlerError(f"parameter {parameter.name!r}: list[Message] is for a batch handler")
        try:
            return decoder(annotation)
        except TypeError as error:
            raise HandlerError(
                f"parameter {parameter.name!r} can't be served: {error}; {self._choices()}"
            ) from None

    def _choices(self) -> str:
        payload = "the payload (pydantic model, msgspec struct, dataclass, TypedDict, dict, list, str, bytes)"
        if self.batch:
            return f"a batch handler may annotate list[X] of {payload}, list[Message], Tx; {self._handles()}"
        return f"a handler may annotate {payload}, Message, Tx; {self._handles()}"

    def _handles(self) -> str:
        usable = sorted(HANDLE_NAMES[kind] for kind in self.database if fits(kind, self.is_async))
        colour = "async def" if self.is_async else "def"
        if not usable:
            return f"this app has no connection for a handler that is {colour}"
        return f"its connection is {' or '.join(usable)}"


def _caller(function: Callable[..., Any], plan: _Plan, name: str) -> Call:
    """The call with its arguments in place; nothing is looked up per message."""
    positions, names = tuple(plan.positions), tuple(plan.names.items())

    def by_name(*given: Any) -> Any:
        return function(*[given[at] for at in positions], **{keyword: given[at] for keyword, at in names})

    def by_position(*given: Any) -> Any:
        return function(*picked(given))

    def blocking(*given: Any) -> Any:
        result = function(*picked(given))
        return result if result is None else _finished(result, name)

    picked = itemgetter(*positions) if len(positions) > 1 else lambda given: [given[at] for at in positions]
    if names:
        return by_name if plan.is_async else lambda *given: _finished(by_name(*given), name)
    return by_position if plan.is_async else blocking


def _unasked(payload: bytes) -> None:
    """The handler takes no payload."""


def _finished(result: Any, name: str) -> Any:
    """A plain handler must be done when it returns: a coroutine nobody awaits would be acked undone."""
    if hasattr(type(result), "__await__"):
        if isinstance(result, CoroutineType):
            result.close()
        raise HandlerError(
            f"handler {name!r} is def but returned something to await ({type(result).__name__}), "
            "so its work is not done; make it (and its decorators) async def"
        )
    return result


def _element(annotation: Any) -> Any:
    """The X of `list[X]` or `Sequence[X]`; Any for a bare list; None for anything else."""
    if annotation is list:
        return Any
    if get_origin(annotation) in (list, Sequence):
        return get_args(annotation)[0]
    return None


def _is_payload(annotation: Any) -> bool:
    try:
        decoder(annotation)
    except TypeError:
        return False
    return True
