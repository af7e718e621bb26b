"""What Redis is asked for that it can't give, and what it delivers that nobody expected."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from oncebox.brokers.contract import BrokerError, BrokerUnavailable, Delivery
from oncebox.brokers.redis import Redis, RedisSource, reader, scripts, source, topology
from oncebox.errors import ConfigError, QueueFull
from oncebox.identity import Identity, field
from oncebox.message import Message
from tests.brokers.redis_bench import RedisBench, make_server, redis_of, redis_server
from tests.brokers.suite import ids, received
from tests.servers import Proxy
from tests.servers.process import free_port
from tests.servers.redis import PASSWORD, RedisServer
from tests.waiting import eventually_async

__all__ = ["redis_server"]

pytestmark = pytest.mark.xdist_group("redis")


async def opened(bench: RedisBench, **words: Any) -> RedisSource:
    """A source of the bench's stream, with words of its own."""
    made = Redis(bench.server.url).stream(bench.stream, group="billing", **{"create": True, **words})
    await made.open()
    bench.stack.push_async_callback(made.close)
    return made


async def pending(bench: RedisBench) -> int:
    """How many entries the group has in hand."""
    [group] = await bench.control.xinfo_groups(bench.stream)
    return int(group["pending"])


async def test_wrong_credentials_are_named_without_showing_them() -> None:
    with make_server(password=PASSWORD) as server:
        for url in (f"redis://:wrong-{PASSWORD}@127.0.0.1:{server.port}", f"redis://127.0.0.1:{server.port}"):
            for opening in (Redis(url).stream("s", group="g").open, Redis(url).topic("s").open):
                with pytest.raises(
                    ConfigError, match=rf"127\.0\.0\.1:{server.port} refused the cred"
                ) as refused:
                    await opening()
                assert PASSWORD not in str(refused.value)
        right = Redis(server.url).stream("s", group="g", create=True)
        await right.open()
        await right.close()


async def test_server_that_can_not_be_reached_is_one_error_and_no_storm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    redis = Redis(f"redis://:{PASSWORD}@127.0.0.1:{port}")
    for opening in (redis.stream("s", group="g").open, redis.topic("s").open):
        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port} can't be reached") as failed:
            await opening()
        assert PASSWORD not in str(failed.value)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_missing_stream_and_group_are_named_with_how_to_create_them(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        redis = Redis(redis_server.url)
        with pytest.raises(ConfigError, match=rf"stream '{bench.stream}' does not exist .*XGROUP CREATE"):
            await redis.stream(bench.stream, group="g").open()
        with pytest.raises(ConfigError, match=rf"stream '{bench.stream}' does not exist .*create=True"):
            await redis.topic(bench.stream).open()
        await opened(bench)
        with pytest.raises(ConfigError, match=r"group 'g' of stream .* does not exist .*create=True"):
            await redis.stream(bench.stream, group="g").open()
        await bench.control.set(f"{bench.stream}-text", "x", ex=60)
        with pytest.raises(ConfigError, match="is not a stream"):
            await redis.stream(f"{bench.stream}-text", group="g").open()


async def test_created_group_begins_with_the_first_entry(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        await bench.publish(Message(id="before"))
        assert ids(await received(await opened(bench))) == ["before"]


def test_words_that_can_not_be_are_refused_before_anything_is_opened() -> None:
    redis = Redis("redis://localhost")
    for make in (
        lambda: redis.stream("", group="g"),
        lambda: redis.stream("s", group=""),
        lambda: redis.stream("s", group="g", payload=""),
        lambda: redis.stream("s", group="g", visibility_seconds=0),
        lambda: redis.stream("s", group="g", dead_letter="s"),
        lambda: redis.topic(""),
        lambda: Redis("http://localhost"),
        lambda: Redis("redis://localhost:port"),
        lambda: Redis("redis://localhost?decode_responses=yes"),
        lambda: Redis("redis://localhost", protocol=3),
    ):
        with pytest.raises(ConfigError):
            make()


async def test_server_that_may_lose_what_it_accepted_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with make_server("--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as server:
        sink = Redis(server.url).topic("s", create=True)
        await sink.open()
        await sink.close()
        assert "keeps no append-only file" in caplog.text
        assert "evicts any key when memory is short (allkeys-lru)" in caplog.text
    caplog.clear()
    with make_server("--appendfsync", "everysec") as server:
        await (source := Redis(server.url).stream("s", group="g", create=True)).open()
        await source.close()
        assert "writes to disk once a second" in caplog.text


async def test_entries_of_other_producers_are_read_as_they_are(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench, payload="data", identity=Identity(id=field("order")))
        entries: list[list[Any]] = [
            ["order", "7", "amount", "100"],
            ["data", b'{"order": 8}', "trace", b"\xff", "trace", "2", "id", b"\xfe"],
            ["order", b"\xff"],
            ["order", "9", "order", "10"],
            ["header:only", "x"],
        ]
        for fields in entries:
            await bench.control.execute_command("XADD", bench.stream, "*", *fields)  # type: ignore[no-untyped-call]
        deliveries = await received(source)
        assert [(delivery.body, delivery.headers) for delivery in deliveries] == [
            (b'{"order":"7","amount":"100"}', ()),
            (b'{"order": 8}', (("trace", b"\xff"), ("trace", b"2"), ("id", b"\xfe"))),
            (b"", (("order", b"\xff"),)),
            (b"", (("order", b"9"), ("order", b"10"))),
            (b"", (("only", b"x"),)),
        ]
        assert [source.identity.resolve(delivery).id for delivery in deliveries] == [
            "7",
            "8",
            None,
            None,
            None,
        ]
        assert deliveries[0].provenance["stream"] == bench.stream
        assert deliveries[0].provenance["group"] == "billing"
        await source.ack(deliveries)
        assert await pending(bench) == 0


async def test_entries_that_were_trimmed_while_in_hand_are_reported_and_forgotten(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisBench(redis_server) as bench:
        source, other = (
            await opened(bench, visibility_seconds=0.3),
            await opened(bench, visibility_seconds=0.3),
        )
        await bench.publish(Message(id="a"), Message(id="b"))
        held = await received(source)
        await bench.control.xtrim(bench.stream, maxlen=1, approximate=False)
        back = await received(other)
        assert ids(back) == ["b"], "b comes back; a is gone"
        await other.ack(back)
        assert "1 entries were trimmed before they were handled" in caplog.text
        await source.ack(held)
        await bench.publish(Message(id="c"))
        assert ids(await received(source)) == ["c"]


async def test_entries_that_were_trimmed_unread_are_warned_of_at_start(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench)
        await bench.publish(Message(id="a"))
        await source.ack(await received(source))
        await bench.control.xtrim(bench.stream, maxlen=0, approximate=False)
        await source.close()
        await (await opened(bench)).close()
        assert "were removed before group" not in caplog.text, "it was read"
        await bench.publish(*(Message(id=str(number)) for number in range(3)))
        await bench.control.xtrim(bench.stream, maxlen=1, approximate=False)
        assert ids(await received(await opened(bench))) == ["2"]
        assert "2 entries were removed before group billing had read them" in caplog.text


async def test_dead_message_is_copied_with_id_and_headers_and_acked(redis_server: RedisServer) -> None:
    headers = (("x", b"1"), ("blob", b"\xff\x00"), ("x", b"2"))
    async with RedisBench(redis_server) as bench, RedisBench(redis_server) as dead:
        source = await opened(bench, dead_letter=dead.stream, delete=True)
        await bench.publish(Message(id="a", payload=b"body", headers=headers))
        [delivery] = await received(source)
        await source.bury(delivery, "exhausted")
        await source.bury(delivery, "exhausted")
        [buried] = await received(await opened(dead))
        assert (ids([buried]), buried.body) == (["a"], b"body")
        origin = f"{bench.stream}:{delivery.provenance['id']}".encode()
        assert buried.headers == (*headers, ("oncebox-reason", b"exhausted"), ("oncebox-origin", origin))
        assert (await pending(bench), await bench.control.xlen(bench.stream)) == (0, 0)
        assert await bench.control.xlen(dead.stream) == 1, "the second answer was for nobody"


async def test_dead_message_without_a_place_for_it_is_acked(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench)
        await bench.publish(Message(id="a"))
        [delivery] = await received(source)
        await source.bury(delivery, "exhausted")
        assert await pending(bench) == 0
        await bench.control.set(f"{bench.stream}-text", "x", ex=60)
        with pytest.raises(ConfigError, match="is not a stream"):
            await opened(bench, dead_letter=f"{bench.stream}-text")


async def test_delete_removes_what_is_acked_and_is_refused_beside_other_groups(
    redis_server: RedisServer,
) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench, delete=True)
        await bench.publish(Message(id="a"), Message(id="b"))
        deliveries: list[Delivery] = []
        while len(deliveries) < 2:
            deliveries += await received(source)
        await source.ack(deliveries[:1])
        assert await bench.control.xlen(bench.stream) == 1
        await bench.control.xgroup_create(bench.stream, "audit", "0")
        with pytest.raises(ConfigError, match="is also read by audit"):
            await opened(bench, delete=True)


async def test_delay_beyond_the_visibility_is_kept(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        # It is kept by reminding the server three times per visibility: longer than a machine may stand still.
        source, other = (
            await opened(bench, visibility_seconds=4),
            await opened(bench, visibility_seconds=4),
        )
        await bench.publish(Message(id="a"))
        [delivery] = await received(source)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await source.nack(delivery, 5.0)
        [again] = await received(other)
        assert loop.time() - began >= 4.99
        assert (ids([again]), again.deliveries) == (["a"], 2)


async def test_consumers_with_nothing_in_hand_are_forgotten_and_others_are_not(
    redis_server: RedisServer,
) -> None:
    async with RedisBench(redis_server) as bench:
        source, other = await opened(bench), await opened(bench)
        await bench.publish(Message(id="a"))
        [delivery] = await received(other)
        assert len(await bench.control.xinfo_consumers(bench.stream, "billing")) >= 1
        await source.close()
        await other.nack(delivery, 60)
        await other.close()
        consumers = await bench.control.xinfo_consumers(bench.stream, "billing")
        assert [consumer["pending"] for consumer in consumers] == [1], "or its message would be gone with it"


async def test_consumers_of_processes_that_died_long_ago_are_forgotten(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RedisBench(redis_server) as bench:
        await opened(bench)
        for name in ("oncebox-dead-1", "oncebox-busy-1", "somebody-else"):
            await bench.control.xgroup_createconsumer(bench.stream, "billing", name)
        await bench.publish(Message(id="a"))
        await bench.control.xreadgroup("billing", "oncebox-busy-1", {bench.stream: ">"})
        await opened(bench)
        assert len(await bench.control.xinfo_consumers(bench.stream, "billing")) == 3, (
            "an hour has not passed"
        )
        monkeypatch.setattr(scripts, "GONE_AFTER_MS", -1)
        await opened(bench)
        left = [each["name"] for each in await bench.control.xinfo_consumers(bench.stream, "billing")]
        assert left == [b"oncebox-busy-1", b"somebody-else"]


async def test_server_that_is_too_old_says_so(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "OLDEST", 99)
    with pytest.raises(ConfigError, match=r"is Redis 7\..*; oncebox needs 99 or newer"):
        await Redis(redis_server.url).topic("s", create=True).open()


async def test_sink_says_of_every_message_whether_it_was_taken(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench)
        sink = Redis(redis_server.url).topic(bench.stream)
        with pytest.raises(BrokerUnavailable, match="not open"):
            await sink.publish([Message(id="a")])
        await sink.open()
        bench.stack.push_async_callback(sink.close)
        outcomes = await sink.publish(
            [
                Message(id="a", type="paid", source="shop", key="k"),
                Message(id="b", provenance={"topic": f"{bench.stream}-absent"}),
                Message(id="c"),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), BrokerError, type(None)]
        assert "absent' does not exist" in str(outcomes[1])
        assert await sink.publish([]) == []
        [delivery, other] = await received(source)
        assert (ids([delivery, other]), delivery.key) == (["a", "c"], "k")
        who = source.identity.resolve(delivery)
        assert (who.type, who.source) == ("paid", "shop")


async def test_sink_of_a_full_server_says_so() -> None:
    with make_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
        sink = Redis(server.url).topic("s", create=True)
        await sink.open()
        source = Redis(server.url).stream("s", group="g", create=True, delete=True)
        await source.open()
        outcomes: list[BaseException | None] = []
        for _ in range(20):
            outcomes += await sink.publish([Message(id="a", payload=b"x" * 500_000)])
        assert outcomes[0] is None
        assert isinstance(outcomes[-1], QueueFull)
        while await sink.publish([Message(id="b")]) != [None]:
            await source.ack(await received(source))  # which makes room
        await source.close()
        await sink.close()


async def test_what_was_confirmed_survives_kill_9_and_receiving_goes_on() -> None:
    with make_server() as server:
        async with RedisBench(server) as bench:
            # Shorter than anybody waits here, longer than a machine may stand still.
            source = await opened(bench, visibility_seconds=6)
            sink = Redis(server.url).topic(bench.stream)
            await sink.open()
            bench.stack.push_async_callback(sink.close)
            assert await sink.publish([Message(id="a"), Message(id="b")]) == [None, None]
            [held] = await received(source, limit=1)
            await source.ack(await received(source, limit=1))
            waiting = asyncio.create_task(source.receive(1))
            await bench.heard(source)
            server.kill9()
            with pytest.raises(BrokerUnavailable):
                await waiting
            with pytest.raises(BrokerUnavailable):
                await source.ack([held])
            with pytest.raises(BrokerUnavailable):
                await sink.publish([Message(id="c")])
            server.start()

            # The pool may still hold a connection of before; what was not confirmed is sent again.
            while True:
                try:
                    assert await sink.publish([Message(id="c")]) == [None]
                    break
                except BrokerUnavailable:
                    continue
            seen: dict[str, int] = {}
            while seen.keys() != {"a", "c"}:
                deliveries = await received(source)
                seen.update(zip(ids(deliveries), (each.deliveries for each in deliveries), strict=True))
                await source.ack(deliveries)
            assert seen["a"] == 2, "the count survives too"


async def test_deleted_group_ends_receive_with_its_name(redis_server: RedisServer) -> None:
    async with RedisBench(redis_server) as bench:
        source = await opened(bench)
        waiting = asyncio.create_task(received(source))
        await bench.heard(source)
        await bench.control.xgroup_destroy(bench.stream, "billing")
        with pytest.raises(BrokerUnavailable, match="NOGROUP"):
            await waiting


async def test_server_that_falls_silent_is_noticed(
    redis_server: RedisServer, proxy_to: Callable[[int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TRANSFER_SECONDS", 1.0)
    monkeypatch.setattr(reader, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(source, "CLOSE_SECONDS", 0.5)
    way = proxy_to(redis_server.port)
    async with RedisBench(redis_server) as bench:
        subscription = Redis(way.through(redis_server.url)).stream(bench.stream, group="billing", create=True)
        await subscription.open()
        bench.stack.push_async_callback(subscription.close)
        waiting = asyncio.create_task(received(subscription))
        await bench.heard(subscription)
        way.go_silent()
        with pytest.raises(BrokerUnavailable, match="did not answer in 1 s"):
            await waiting
        way.resume()
        monkeypatch.setattr(reader, "TRANSFER_SECONDS", 1000.0)
        await bench.publish(Message(id="a"))
        assert ids(await received(subscription)) == ["a"]
        waiting = asyncio.create_task(received(subscription))
        await bench.heard(subscription)
        way.go_silent()
        async with asyncio.timeout(25):
            await subscription.close()
        with pytest.raises(BrokerUnavailable):
            await waiting


async def test_large_entries_come_in_smaller_batches(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 4_000)
    async with RedisBench(redis_server) as bench:
        source = await opened(bench)
        await bench.publish(*(Message(id=str(number), payload=b"x" * 1_000) for number in range(30)))
        sizes: list[int] = []
        while sum(sizes) < 30:
            deliveries = await received(source, limit=10)
            sizes.append(len(deliveries))
            await source.ack(deliveries)
        assert sizes[0] == 10
        assert max(sizes[1:]) <= 6, "fewer once it is known how large they are"


async def test_nothing_is_opened_before_open(
    redis_server: RedisServer, proxy_to: Callable[[int], Proxy]
) -> None:
    way = proxy_to(redis_server.port)
    redis = Redis(way.through(redis_server.url))
    source, sink = redis.stream("s", group="g", create=True), redis.topic("s", create=True)
    assert way.connections == 0
    await source.open()
    await sink.open()
    assert way.connections > 0
    await source.close()
    await sink.close()
    await eventually_async(lambda: way.connections == 0)
    async with redis_of(redis_server.url) as client:
        await client.delete("s")
