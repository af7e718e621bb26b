"""A consumer's handlers by type: found in one dictionary look-up, checked when they are registered."""

from __future__ import annotations

from oncebox.errors import HandlerError
from oncebox.runtime.handlers import Handler


class Registry:
    """Which handler serves which type. All of them are `def`, or all of them are `async def`."""

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer
        self._by_type: dict[str, Handler] = {}
        self._any: Handler | None = None

    def add(self, handler: Handler) -> None:
        """Register, or HandlerError naming both handlers."""
        first = next(iter(self.all()), None)
        if first is not None and first.is_async != handler.is_async:
            raise HandlerError(
                f"consumer {self.consumer!r}: {handler.name} is {_kind(handler)}, but {first.name} is "
                f"{_kind(first)}; a consumer's handlers are all of one kind"
            )
        if not handler.types:
            if self._any is not None:
                raise self._taken("every other type", self._any, handler)
            self._any = handler
        for kind in handler.types:
            if kind in self._by_type:
                raise self._taken(f"type {kind!r}", self._by_type[kind], handler)
        self._by_type |= dict.fromkeys(handler.types, handler)

    def _taken(self, what: str, first: Handler, second: Handler) -> HandlerError:
        return HandlerError(
            f"consumer {self.consumer!r}: {what} has a handler already, {first.name}; {second.name} would be a second"
        )

    def find(self, kind: str) -> Handler | None:
        """The handler of a type, or the one that takes everything, or None."""
        return self._by_type.get(kind, self._any)

    def all(self) -> list[Handler]:
        """Every handler once."""
        handlers = list(dict.fromkeys(self._by_type.values()))
        return [*handlers, self._any] if self._any is not None and self._any not in handlers else handlers

    def names(self) -> list[str]:
        """Every type that is named, sorted."""
        return sorted(self._by_type)

    @property
    def takes_all(self) -> bool:
        """Whether a handler takes every type that no other one names."""
        return self._any is not None

    @property
    def is_async(self) -> bool:
        """Whether the handlers are `async def`."""
        return any(handler.is_async for handler in self.all())

    def short_types(self) -> tuple[str, ...] | None:
        """Types that are taken in the effects' transaction; None means all but the long ones."""
        if self._any is not None:
            return None
        return tuple(
            kind for kind, handler in self._by_type.items() if not handler.long and handler.effect is None
        )

    def effect_types(self) -> tuple[str, ...]:
        """Types that are calls to the outside world."""
        return tuple(kind for kind, handler in self._by_type.items() if handler.effect is not None)

    def long_types(self) -> tuple[str, ...]:
        """Types whose handlers hold a lease."""
        return tuple(kind for kind, handler in self._by_type.items() if handler.long)


def _kind(handler: Handler) -> str:
    return "async def" if handler.is_async else "def"
