"""Workers that die with a message in hand, without killing a process."""

from functools import partial

import pytest

from oncebox import Consumer
from oncebox.core.run import Perform
from oncebox.core.steps import Call, Handle, Op, Rollback, Side, Step
from oncebox.core.stored import work_batch
from oncebox.core.work import Work
from oncebox.errors import DatabaseUnavailable
from tests.core.kit import Shop


def beating(work: Work) -> Op[None]:
    """The heartbeat of a worker that is about to die."""
    yield Side(Call(work.queries.heartbeat, {"id": work.worker, "host": "here", "pid": 1}))


def killed_at_handle(perform: Perform) -> Perform:
    """From its handler on, the worker does nothing any more, except that its connection's end rolls back."""
    killed = False

    def performing(step: Step) -> object:
        nonlocal killed
        killed = killed or isinstance(step, Handle)
        if killed and not isinstance(step, Rollback):
            raise DatabaseUnavailable("killed")
        return perform(step)

    return performing


async def die_in_hand(shop: Shop, consumer: Consumer, slot: int, *, suspect: bool = False) -> None:
    """Leave what a killed worker leaves: a heartbeat, a marker, and nothing else."""
    await shop.perform(consumer, beating, slot=slot)
    with pytest.raises(DatabaseUnavailable):
        await shop.perform(
            consumer, partial(work_batch, suspect=suspect), slot=slot, through=killed_at_handle
        )
