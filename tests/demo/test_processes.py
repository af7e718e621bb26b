"""Workers and the watch over them: who fails is named, who is late is ended, nobody is left."""

import asyncio
import os
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from oncebox.brokers.contract import Delivery
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteSource
from oncebox.demo import run as run_module
from oncebox.demo.crew import Crew, DemoFailed
from oncebox.demo.order import QUEUE, Order
from oncebox.demo.place import Place
from oncebox.demo.schedule import PaymentCaptured, plan
from oncebox.demo.screen import Bars, Lines, progress
from oncebox.demo.verdict import counted
from oncebox.demo.worker import consume_as_usual
from oncebox.message import encode_payload


def order(address: str, folder: Path, *, ack_first: bool = False) -> Order:
    place = Place(f"sqlite:///{folder / 'demo.db'}", "oncebox_demo_test")
    return Order(
        side="unprotected", address=address, place=place, config=str(folder / "x"), ack_first=ack_first
    )


async def test_workers_that_will_not_stay_end_the_demo_with_their_last_words(tmp_path: Path) -> None:
    crew = Crew(order(f"memory://127.0.0.1:1/{'0' * 64}", tmp_path), 1, tmp_path / "log")
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            crew.start(group)
    error = caught.value.exceptions[0]
    assert isinstance(error, DemoFailed)
    assert "workers end by themselves (1): oncebox.errors.BrokerUnavailable" in str(error)


async def test_a_killed_worker_is_replaced_and_none_is_left_when_cut_short(tmp_path: Path) -> None:
    memory = Memory()
    memory.queue(QUEUE)
    async with memory.serve() as address:
        crew = Crew(order(address, tmp_path), 1, tmp_path / "log")

        async def cut_short() -> None:
            async with asyncio.TaskGroup() as group:
                crew.start(group)
                await crew.all_ready()
                pids.append(pid(crew))
                await crew.kill(0, 0.0)
                await crew.all_ready()
                pids.append(pid(crew))
                raise RuntimeError("cut short")

        pids: list[int] = []
        with pytest.raises(ExceptionGroup):
            await cut_short()
    assert crew.kills == 1
    assert len(set(pids)) == 2
    for gone in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(gone, 0)


def pid(crew: Crew) -> int:
    process = crew._seats[0]._process
    assert process is not None
    return process.pid


async def test_a_run_in_which_nothing_moves_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_module, "STALL_SECONDS", 0.2)
    memory = Memory()
    memory.queue(QUEUE)
    crew = Crew(order("memory://127.0.0.1:1/x", tmp_path), 0, tmp_path / "log")
    with pytest.raises(DemoFailed, match="stands still: 0 deliveries acked, 0 kills"):
        await run_module._watch("oncebox", memory, crew, Lines(Console(file=StringIO())))


class Book:
    """A source with one payment and a connection, which note what is done to them, in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    async def receive(self, limit: int) -> list[Delivery]:
        if self.entries:
            raise EOFError
        return [Delivery(body=encode_payload(PaymentCaptured("pay-1", 1, 100)))]

    async def ack(self, deliveries: list[Delivery]) -> None:
        self.entries.append("ack")

    def execute(self, statement: str, values: tuple[Any, ...]) -> None:
        self.entries.append("charge")


@pytest.mark.parametrize(("ack_first", "entries"), [(False, ["charge", "ack"]), (True, ["ack", "charge"])])
async def test_the_usual_handler_acks_after_its_work_unless_told_otherwise(
    ack_first: bool, entries: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    book = Book()
    monkeypatch.setattr(Place, "connect", lambda _: book)
    with pytest.raises(EOFError):
        await consume_as_usual(cast("RemoteSource", book), order("", tmp_path, ack_first=ack_first))
    assert book.entries == entries


def test_a_terminal_gets_bars_and_anything_else_gets_lines() -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=100, _environ={"TERM": "xterm"})
    assert isinstance(progress(Console(file=StringIO())), Lines)
    bars = progress(terminal)
    assert isinstance(bars, Bars)
    schedule = plan(10, 0, 0, seed=1)
    with bars as watcher:
        watcher.began("oncebox", 10, 3)
        watcher.moved("oncebox", 4, 2)
        charges = Counter(payment.id for payment in schedule.payments)
        figures = counted(schedule, charges, deliveries=10, kills=3, seconds=1.0)
        watcher.ended("oncebox", figures)
    shown = cast("StringIO", terminal.file).getvalue()
    assert "10/10" in shown
    assert "3 killed" in shown
