"""A flow whose process dies before or after a step: nothing is cleaned up, the connection just goes."""

from typing import Any, TypeVar

from oncebox.core.steps import Op, Rollback

T = TypeVar("T")


class Abandoned:
    """Says afterwards whether the flow was cut off, or had ended before the step."""

    def __init__(self, number: int, when: str, *, in_transaction: bool = True) -> None:
        self.number = number
        self.when = when
        self.in_transaction = in_transaction
        self.died = False

    def __call__(self, op: Op[T]) -> Op[T | None]:
        """The flow, up to the step with this number (from 1)."""
        count = 0
        try:
            step = next(op)
            while True:
                count += 1
                if (count, self.when) == (self.number, "before"):
                    yield from self._die()
                    return None
                try:
                    reply: Any = yield step
                except Exception as error:
                    step = op.throw(error)
                    continue
                if (count, self.when) == (self.number, "after"):
                    yield from self._die()
                    return None
                step = op.send(reply)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _die(self) -> Op[None]:
        self.died = True
        if self.in_transaction:
            yield Rollback()  # what the server does when the connection is gone
