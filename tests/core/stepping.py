"""Flows step by step: driven by hand with scripted replies, or on a real connection with a fault at a number."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Generic, TypeVar

from oncebox.core.run import Perform
from oncebox.core.steps import Begin, Commit, Execute, Fetch, Op, Side, Step

T = TypeVar("T")
S = TypeVar("S", bound=Step)

Reply = object
"""What a step is answered with; an exception is thrown into the flow instead."""


class Stepped(Generic[T]):
    """A flow driven by hand. Look at `step`, then `reply` to it; `value` is what the flow returned."""

    def __init__(self, op: Op[T]) -> None:
        self._op = op
        self.steps: list[Step] = []
        self.step: Step | None = None
        self.value: T | None = None
        self._advance(lambda: next(op))

    def _advance(self, move: Callable[[], Step]) -> None:
        self.step = None
        try:
            self.step = move()
        except StopIteration as stop:
            self.value = stop.value
        else:
            self.steps.append(self.step)

    @property
    def finished(self) -> bool:
        return self.step is None

    def expect(self, kind: type[S]) -> S:
        """The step that is asked for now, which must be of this kind."""
        assert isinstance(self.step, kind), f"expected {kind.__name__}, the flow asks for {self.step!r}"
        return self.step

    def reply(self, answer: Reply = None) -> None:
        """Answer the step, or fail it with an exception. Raises what the flow lets out."""
        if isinstance(answer, BaseException):
            self._advance(lambda: self._op.throw(answer))
        else:
            self._advance(lambda: self._op.send(answer))


def play(op: Op[T], script: Sequence[tuple[type[Step], Reply]]) -> Stepped[T]:
    """Drive `op` through exactly these steps, with these replies, to its end."""
    stepped = Stepped(op)
    for kind, reply in script:
        stepped.expect(kind)
        stepped.reply(reply)
    assert stepped.finished, f"the script is over, the flow asks for {stepped.step!r}"
    return stepped


def queries_of(step: Step) -> list[str]:
    """The names of the queries a step carries, those of a chained BEGIN last."""
    match step:
        case Begin() | Execute():
            return [call.query.name for call in step.calls]
        case Commit():
            names = [call.query.name for call in step.calls]
            return names + (queries_of(step.then) if step.then is not None else [])
        case Fetch() | Side():
            return [step.call.query.name]
    return []


def script_of(steps: Sequence[Step]) -> list[str]:
    """Steps as short text, for comparing whole flows: `Begin(claim)`, `Handle`, `Commit(keep_result)`."""
    return [
        type(step).__name__ + (f"({','.join(names)})" if (names := queries_of(step)) else "")
        for step in steps
    ]


Hook = Callable[[Step], None]


class Numbered:
    """A performer whose steps have numbers, from 1: a hook may act, or raise, before and after each."""

    def __init__(
        self,
        perform: Perform,
        *,
        before: Mapping[int, Hook] | None = None,
        after: Mapping[int, Hook] | None = None,
    ) -> None:
        self._perform = perform
        self._before = before or {}
        self._after = after or {}
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> Any:
        self.steps.append(step)
        number = len(self.steps)
        if hook := self._before.get(number):
            hook(step)
        reply = self._perform(step)
        after = self._after.get(number)
        if after is None:
            return reply
        if isawaitable(reply):
            return _then(reply, step, after)
        after(step)
        return reply


async def _then(reply: Awaitable[Any], step: Step, hook: Hook) -> Any:
    answer = await reply
    hook(step)
    return answer


def raising(error: BaseException) -> Hook:
    """A hook that fails the step it is put at."""

    def hook(step: Step) -> None:
        raise error

    return hook
