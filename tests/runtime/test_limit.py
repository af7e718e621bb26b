"""One timer for one handler after another: it strikes in time, and takes nobody else's cancel for its own."""

from __future__ import annotations

import asyncio

import pytest

from oncebox.runtime.limit import Limit


async def wait(limit: Limit, event: asyncio.Event) -> str:
    limit.start()
    try:
        await event.wait()
        return "done"
    except asyncio.CancelledError:
        if limit.end():
            return "over"
        raise
    finally:
        limit.end()


@pytest.fixture
def done() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def test_it_strikes_again_and_again_and_leaves_no_cancel_behind(done: asyncio.Event) -> None:
    limit = Limit(0.02)
    for _ in range(3):
        assert await wait(limit, asyncio.Event()) == "over"
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        assert await wait(limit, done) == "done"


async def test_what_ends_in_time_gives_the_next_one_its_whole_time(done: asyncio.Event) -> None:
    limit = Limit(0.2)
    loop = asyncio.get_running_loop()
    assert await wait(limit, done) == "done"
    await asyncio.sleep(0.15)  # the first one's timer is about to fire
    began = loop.time()
    assert await wait(limit, asyncio.Event()) == "over"
    assert loop.time() - began >= 0.2 - 0.002  # the loop's clock has a grain


async def test_timer_that_fires_when_nothing_runs_strikes_nobody(done: asyncio.Event) -> None:
    limit = Limit(0.01)
    assert await wait(limit, done) == "done"
    await asyncio.sleep(0.05)
    assert await wait(limit, done) == "done"


async def test_cancel_of_somebody_else_stays_one() -> None:
    task = asyncio.create_task(wait(Limit(60), asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_somebody_elses_cancel_goes_before_the_limits_own() -> None:
    limit = Limit(0.01)
    struck = asyncio.Event()

    async def stubborn() -> None:
        limit.start()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            struck.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert not limit.end()
                raise

    task = asyncio.create_task(stubborn())
    await struck.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
