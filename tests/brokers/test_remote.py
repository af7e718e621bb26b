"""`RemoteMemory`: the suite through a socket, and what only sockets and processes can do."""

import asyncio
import contextlib
import os
import sys

import pytest

from oncebox.brokers.contract import Sink, Source
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteMemory
from oncebox.errors import BrokerUnavailable, ConfigError, QueueFull, TooLarge
from oncebox.message import Message
from tests.brokers.benches import RemoteBench
from tests.brokers.suite import PATIENCE_SECONDS, Bench, BrokerSuite, ids, received


class TestRemoteMemory(BrokerSuite):
    def bench(self) -> Bench:
        return RemoteBench()


async def test_killed_process_gives_back_what_it_held_and_keeps_what_it_acked() -> None:
    memory = Memory()
    source = memory.queue("payments", visibility_seconds=3600)
    await source.open()
    memory.put("payments", *(Message(id=name) for name in "abc"))
    async with memory.serve() as address:
        environment = {**os.environ, "MEMORY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.brokers.child", env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        assert await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECONDS) == b"holding 2\n"
        assert memory.stats()["payments"].in_flight == 2
        child.kill()
        back = await received(source)
        while len(back) < 2:
            back += await received(source)
        await child.wait()
    assert ids(back) == ["b", "c"]
    assert [delivery.deliveries for delivery in back] == [2, 2]
    assert memory.stats()["payments"].dropped == 2


async def test_source_and_topic_fit_the_contract() -> None:
    memory = Memory()
    memory.queue("payments", pins_keys=True, retention_seconds=60)
    async with memory.serve() as address, RemoteMemory(address) as remote:
        source: Source = remote.queue("payments")
        sink: Sink = remote.topic("events")
        await source.open()
        assert (source.pins_keys, source.redelivery_horizon_seconds, source.in_process) == (True, 60, False)
        await source.close()
        await sink.close()


async def test_topic_publishes_and_confirms_each_message() -> None:
    memory = Memory()
    memory.queue("payments", size_max=2)
    memory.bind("events", "payments", "paid")
    async with memory.serve() as address:
        topic = RemoteMemory(address).exchange("events")
        await topic.open()
        large = Message(id="b", payload=bytes(33 * 1024 * 1024))
        messages = [Message(id="a", type="paid"), large, Message(id="c", type="other")]
        messages += [Message(id=name, type="paid") for name in "de"]
        answers = await topic.publish(messages)
        await topic.close()
    assert [type(answer) for answer in answers] == [type(None), TooLarge, type(None), type(None), QueueFull]
    assert memory.stats()["payments"].published == 2


async def test_batch_larger_than_a_frame_comes_in_several() -> None:
    memory = Memory()
    memory.queue("payments")
    memory.bind("events", "payments")
    body = bytes(12 * 1024 * 1024)
    async with memory.serve() as address:
        remote = RemoteMemory(address)
        topic, source = remote.topic("events"), remote.queue("payments")
        await source.open()
        answers = await topic.publish([Message(id=str(number), payload=body) for number in range(4)])
        assert answers == [None] * 4
        assert ids(await received(source)) == ["0", "1"]
        assert ids(await received(source)) == ["2", "3"]
        await source.close()
        await topic.close()


async def test_publish_and_stats_reach_the_parent() -> None:
    memory = Memory()
    memory.queue("payments", size_max=3)
    async with memory.serve() as address, RemoteMemory(address) as remote:
        await remote.publish("payments", Message(id="a"), duplicates=1, delay_seconds=5)
        stats = await remote.stats()
        assert (stats["payments"].delayed, stats) == (2, memory.stats())
        with pytest.raises(QueueFull):
            await remote.publish("payments", Message(id="b"), duplicates=1)
        with pytest.raises(ConfigError, match="no queue named 'other'"):
            await remote.publish("other", Message(id="b"))
        with pytest.raises(ValueError, match="not negative"):
            await remote.publish("payments", Message(id="b"), delay_seconds=-1)


async def test_queue_that_was_not_declared_is_refused_at_open() -> None:
    async with Memory().serve() as address:
        with pytest.raises(ConfigError, match="no queue named 'payments'"):
            await RemoteMemory(address).queue("payments").open()


async def test_only_who_knows_the_secret_gets_in() -> None:
    memory = Memory()
    memory.queue("payments")
    async with memory.serve() as address:
        stranger = RemoteMemory(address[:-1] + ("1" if address[-1] == "0" else "0"))
        with pytest.raises(BrokerUnavailable) as refused:
            await stranger.stats()
        assert address.rsplit("/", 1)[1][:-1] not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["", "memory://127.0.0.1/s3cret", "amqp://127.0.0.1:1/s3cret", "memory://h:1"]
)
def test_address_that_is_none_is_refused_without_being_quoted(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RemoteMemory(address)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "noise", [b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{}", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_stranger_that_speaks_nonsense_is_hung_up_on(noise: bytes) -> None:
    memory = Memory()
    memory.queue("payments")
    async with memory.serve() as address:
        host, port = address.removeprefix("memory://").split("/")[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(noise)
        if len(noise) < 4:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        async with RemoteMemory(address) as remote:
            assert "payments" in await remote.stats()


async def test_receive_raises_when_the_parent_stops_serving() -> None:
    memory = Memory()
    memory.queue("payments")
    serving = memory.serve()
    source = RemoteMemory(await serving.__aenter__()).queue("payments")
    await source.open()
    waiting = asyncio.create_task(received(source))
    await source.flush()
    await serving.__aexit__(None, None, None)
    with pytest.raises(BrokerUnavailable):
        await waiting
    with pytest.raises(BrokerUnavailable):
        await received(source)
    await source.close()


async def test_stopping_gives_back_what_children_hold() -> None:
    memory = Memory()
    own = memory.queue("payments")
    await own.open()
    memory.put("payments", Message(id="a"))
    async with memory.serve() as address:
        source = RemoteMemory(address).queue("payments")
        await source.open()
        held = await received(source)
    assert ids(await received(own)) == ["a"]
    await source.ack(held)
    await source.close()


async def test_prefetch_bounds_what_a_child_holds() -> None:
    memory = Memory()
    memory.queue("payments")
    memory.put("payments", *(Message(id=str(number)) for number in range(4)))
    async with memory.serve() as address:
        source = RemoteMemory(address).queue("payments", prefetch=3)
        await source.open()
        held = await received(source)
        assert ids(held) == ["0", "1", "2"]
        await source.ack(held[:1])
        assert ids(await received(source)) == ["3"]
        await source.close()


async def test_acks_of_one_turn_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    memory.queue("payments")
    memory.put("payments", *(Message(id=str(number)) for number in range(50)))
    async with memory.serve() as address:
        source = RemoteMemory(address).queue("payments")
        await source.open()
        held = await received(source, limit=50)
        frames = 0
        write = asyncio.StreamWriter.write

        def counted(writer: asyncio.StreamWriter, data: bytes) -> None:
            nonlocal frames
            frames += 1
            write(writer, data)

        monkeypatch.setattr(asyncio.StreamWriter, "write", counted)
        await asyncio.gather(*(source.ack([delivery]) for delivery in held))
        await source.flush()
        assert memory.stats()["payments"].acked == 50
        # The acks, the request to flush, and its reply.
        assert frames == 3
        await source.close()
