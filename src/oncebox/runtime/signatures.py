"""What a function's signature says: its parameters, with annotations resolved, and its colour."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from oncebox.errors import HandlerError, MessageError
from oncebox.message import TYPE_BYTES_MAX, check_text

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Parameter(typing.NamedTuple):
    """One parameter that oncebox fills, or leaves to its default."""

    name: str
    annotation: Any  # resolved; Parameter.empty where there is none
    required: bool
    by_name: bool
    by_position: bool


def check_function(function: Any, types: tuple[str, ...]) -> None:
    """Refuse what would run nothing when called, and types that no message can have."""
    if not callable(function) or inspect.isclass(function):
        raise HandlerError("a handler is a function, a bound method, or an object that can be called")
    inner = _unbound(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise HandlerError("it is a generator (it has yield), so calling it would run nothing; use return")
    if getattr(inner, "__name__", "") == "<lambda>" and not types:
        raise HandlerError("a lambda has no name to find it by: name the types it takes, or use def")
    for kind in types:
        try:
            check_text("type", kind, TYPE_BYTES_MAX)
        except MessageError as error:
            raise HandlerError(str(error)) from None
        if not kind:
            raise HandlerError("a type can't be empty; without any type it takes every message")
    if len(set(types)) != len(types):
        raise HandlerError("a type is named twice")


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters to serve, without those that a partial has bound. `HandlerError` names the culprit."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise HandlerError("its parameters can't be read; wrap it in a def with annotations") from None
    bound = set(_partial_names(function))
    scope = getattr(inspect.unwrap(_unbound(function)), "__globals__", {})
    found = []
    for parameter in signature.parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind in _VARIADIC:
            star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise HandlerError(
                f"parameter '{star}{parameter.name}' can't be served: name and annotate each parameter"
            )
        found.append(
            Parameter(
                name=parameter.name,
                annotation=_resolved(parameter, scope),
                required=parameter.default is inspect.Parameter.empty,
                by_name=parameter.kind is not inspect.Parameter.POSITIONAL_ONLY,
                by_position=parameter.kind is not inspect.Parameter.KEYWORD_ONLY,
            )
        )
    return found


def _resolved(parameter: inspect.Parameter, scope: dict[str, Any]) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.annotation
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)[parameter.name]
    except Exception as error:  # whatever evaluating somebody's annotation raises
        raise HandlerError(
            f"parameter {parameter.name!r}: its annotation can't be resolved "
            f"({type(error).__name__}: {error}); "
            "handlers' annotations are read at run time, so import them at module level, "
            "not only under TYPE_CHECKING"
        ) from None


def _partial_names(function: Any) -> Iterator[str]:
    while isinstance(function, functools.partial):
        yield from function.keywords
        function = function.func


def _unbound(function: Any) -> Any:
    """The function inside a partial, a bound method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.ismethod(function):
        return function.__func__
    return function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_unbound(function))


def name_of(function: Any) -> str:
    """What people know it by."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]
