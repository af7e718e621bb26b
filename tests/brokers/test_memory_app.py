"""An app on the in-process broker, by its real clock."""

import asyncio
from collections.abc import Sequence
from contextlib import closing

from oncebox.brokers.contract import Source
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteMemory
from oncebox.message import Message
from tests.brokers.app_suite import AppSuite
from tests.brokers.benches import MemoryBench
from tests.brokers.chaos import SIZE, SOAKING, ChaosBroker, Size, chaos, run_chaos
from tests.brokers.suite import VISIBILITY_SECONDS, Bench
from tests.crash.harness import Broker
from tests.crash.nursery import Nursery
from tests.crash.worker import QUEUE
from tests.servers import Postgres


class ClockedBench(MemoryBench):
    """`Memory` whose time passes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.memory.queue("payments", visibility_seconds=VISIBILITY_SECONDS)

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


class TestMemoryApp(AppSuite):
    def bench(self) -> Bench:
        return ClockedBench()


class MemoryChaos(ChaosBroker):
    """`Memory` served to other processes: it is never restarted, since it keeps nothing."""

    make_source = "tests.brokers.test_memory_app:remote_source"
    durable = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.arguments = {"address": broker.address}

    def publish(self, messages: Sequence[Message]) -> None:
        self.broker.memory.put(QUEUE, *messages)

    def restart(self) -> None:
        raise NotImplementedError

    def is_empty(self) -> bool:
        return self.broker.stats.depth == 0


def remote_source(address: str) -> Source:
    return RemoteMemory(address).queue(QUEUE)


@chaos
def test_chaos(disposable_postgres: Postgres, nursery: Nursery) -> None:
    with closing(Broker(VISIBILITY_SECONDS)) as broker:
        size = SIZE if SOAKING else Size(messages=100, kills=1)
        run_chaos(MemoryChaos(broker), disposable_postgres, nursery, size=size)
