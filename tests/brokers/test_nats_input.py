"""What NATS is asked for that it can't give, and what it delivers that nobody expected."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js import api

from oncebox.brokers.contract import BrokerError, BrokerUnavailable, Delivery
from oncebox.brokers.nats import Nats, NatsSource, pull, source
from oncebox.errors import ConfigError, MessageError, TooLarge
from oncebox.message import Message
from tests.brokers.nats_bench import NatsBench, make_server, nats_of, nats_server
from tests.brokers.suite import ids, received
from tests.servers import Proxy
from tests.servers.nats import PASSWORD, NatsServer
from tests.servers.process import free_port
from tests.waiting import eventually_async

__all__ = ["nats_server"]

pytestmark = pytest.mark.xdist_group("nats")


async def opened(bench: NatsBench, **words: Any) -> NatsSource:
    """A source of the bench's stream, with words of its own."""
    made = Nats(bench.server.url).stream(bench.stream, consumer="billing", **{"create": True, **words})
    await made.open()
    bench.stack.push_async_callback(made.close)
    return made


async def test_wrong_credentials_are_named_without_showing_them() -> None:
    with make_server(secured=True) as server:
        wrong = f"nats://shop:wrong-{PASSWORD}@127.0.0.1:{server.port}"
        for opening in (Nats(wrong).stream("S", consumer="c").open, Nats(wrong).subject("s").open):
            with pytest.raises(
                ConfigError, match=rf"127\.0\.0\.1:{server.port} refused the credentials"
            ) as refused:
                await opening()
            assert PASSWORD not in str(refused.value)
        right = Nats(server.url).stream("S", consumer="c", create=True)
        await right.open()
        await right.close()


async def test_server_that_can_not_be_reached_is_one_error_and_no_storm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    nats = Nats(f"nats://shop:{PASSWORD}@127.0.0.1:{port}")
    for opening in (nats.stream("S", consumer="c").open, nats.subject("s").open):
        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port} can't be reached") as failed:
            await opening()
        assert PASSWORD not in str(failed.value)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_server_without_jetstream_says_so() -> None:
    with make_server(jetstream=False) as server, pytest.raises(ConfigError, match="no JetStream"):
        await Nats(server.url).stream("S", consumer="c").open()


async def test_missing_stream_and_consumer_are_named_with_how_to_create_them(nats_server: NatsServer) -> None:
    nats = Nats(nats_server.url)
    with pytest.raises(
        ConfigError, match=r"stream 'ABSENT' does not exist.*nats stream add ABSENT.*create=True"
    ):
        await nats.stream("ABSENT", consumer="c").open()
    async with NatsBench(nats_server) as bench:
        with pytest.raises(ConfigError, match=r"consumer 'c' of stream .*nats consumer add .*create=True"):
            await nats.stream(bench.stream, consumer="c").open()


async def test_create_makes_both_once_and_for_good(nats_server: NatsServer) -> None:
    words: dict[str, Any] = {"consumer": "c", "subject": "made.>", "visibility_seconds": 20}
    made = Nats(nats_server.url).stream("MADE", create=True, **words)
    await made.open()
    await made.close()
    async with nats_of(nats_server.url) as js:
        consumer = (await js.consumer_info("MADE", "c")).config
        stream = (await js.stream_info("MADE")).config
        assert (stream.subjects, str(stream.storage)) == (["made.>"], "file")
        assert (consumer.ack_wait, consumer.max_deliver, consumer.filter_subject) == (20, -1, "made.>")
        found = Nats(nats_server.url).stream("MADE", **words)
        await found.open()
        await found.close()
        with pytest.raises(ConfigError, match=r"waits 20 s for an ack, but visibility_seconds=5"):
            await Nats(nats_server.url).stream("MADE", consumer="c", visibility_seconds=5).open()
        with pytest.raises(ConfigError, match=r"takes made\.>, but subject='other' was asked for"):
            await Nats(nats_server.url).stream("MADE", consumer="c", subject="other").open()
        await js.delete_stream("MADE")


async def test_consumer_that_would_lose_messages_is_refused_or_warned_of(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        await js.add_consumer(bench.stream, api.ConsumerConfig(durable_name="push", deliver_subject="d"))
        await js.add_consumer(
            bench.stream, api.ConsumerConfig(durable_name="lax", ack_policy=api.AckPolicy.NONE)
        )
        await js.add_consumer(bench.stream, api.ConsumerConfig(durable_name="few", max_deliver=3))
        nats = Nats(nats_server.url)
        with pytest.raises(ConfigError, match="push consumer"):
            await nats.stream(bench.stream, consumer="push").open()
        with pytest.raises(ConfigError, match="must be explicit"):
            await nats.stream(bench.stream, consumer="lax").open()
        few = nats.stream(bench.stream, consumer="few")
        await few.open()
        await few.close()
    assert "gives a message up after 3 deliveries" in caplog.text


async def test_age_of_the_stream_is_the_redelivery_horizon(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        assert (await opened(bench)).redelivery_horizon_seconds is None
        config = (await js.stream_info(bench.stream)).config
        await js.update_stream(config, max_age=3600)
        assert (await opened(bench)).redelivery_horizon_seconds == 3600


def test_names_and_words_that_can_not_be_are_refused_before_anything_is_opened() -> None:
    nats = Nats("nats://localhost")
    for make in (
        lambda: nats.stream("a.b", consumer="c"),
        lambda: nats.stream("S", consumer=""),
        lambda: nats.stream("S", consumer="c", visibility_seconds=0),
        lambda: nats.subject("a.*"),
        lambda: nats.subject("a.{colour}"),
        lambda: nats.subject("a", create=True),
        lambda: Nats("http://localhost"),
        lambda: Nats("nats://localhost:port"),
        lambda: Nats([]),
        lambda: Nats("nats://localhost", allow_reconnect=True),
    ):
        with pytest.raises(ConfigError):
            make()


async def test_headers_of_a_careless_producer_arrive_byte_for_byte(nats_server: NatsServer) -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: \xff\xfe\r\nx: 1\r\nx: \xc3\r\nno-space:2\r\ncaf\xc3\xa9: y\r\njunk\r\n\r\n"
    async with NatsBench(nats_server) as bench:
        subscription = await opened(bench)
        with socket.create_connection(("127.0.0.1", nats_server.port)) as producer:
            line = f"HPUB {bench.stream}.raw {len(block)} {len(block)}\r\n".encode()
            producer.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n' + line + block + b"\r\nPING\r\n")
            [delivery] = await received(subscription)
        assert delivery.body == b""
        assert delivery.headers == (
            ("Nats-Msg-Id", b"\xff\xfe"),
            ("x", b"1"),
            ("x", b"\xc3"),
            ("no-space", b"2"),
            ("café", b"y"),
        )
        assert delivery.properties == {}, "an id that is not text is none"
        assert subscription.identity.resolve(delivery).id is None
        stored_at = datetime.fromisoformat(delivery.provenance["timestamp"])
        assert abs(datetime.now(UTC) - stored_at) < timedelta(minutes=10)
        assert delivery.provenance == {
            "stream": bench.stream,
            "id": "1",
            "subject": f"{bench.stream}.raw",
            "consumer": "billing",
            "timestamp": stored_at.isoformat(),
        }
        await subscription.ack([delivery])


async def test_body_over_the_limit_of_the_server_is_named_and_its_neighbours_are_taken() -> None:
    with make_server(max_payload=1024) as server:
        sink = Nats(server.url).subject("events", stream="EVENTS", create=True)
        await sink.open()
        outcomes = await sink.publish(
            [
                Message(id="a", payload=b"x" * 500),
                Message(id="b", payload=b"x" * 1024),
                Message(id="c", payload=b"x" * 900, headers={"h": b"x" * 200}),
                Message(id="d"),
            ]
        )
        await sink.close()
        assert [type(outcome) for outcome in outcomes] == [type(None), TooLarge, TooLarge, type(None)]
        assert "this server takes 1,024 (max_payload" in str(outcomes[2])


async def test_sink_says_of_every_message_whether_it_was_taken(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        await js.update_stream((await js.stream_info(bench.stream)).config, duplicate_window=120)
        subscription = await opened(bench)
        sink = Nats(nats_server.url).subject(bench.stream + ".{type}", stream=bench.stream)
        await sink.open()
        bench.stack.push_async_callback(sink.close)
        messages = [
            Message(id="a", type="paid.in full", source="shop", key="k ü", headers={"Nats-Rollup": b"all"}),
            Message(id=" b"),
            Message(id="c", headers=(("new\nline", b""),)),
            Message(id="d", headers=(("h", b"1\r\nNats-Rollup: all"),)),
            Message(id="e", provenance={"topic": "nobody.listens"}),
            Message(id="f", type="*.>"),
        ]
        outcomes = await sink.publish(messages)
        kinds = [type(None), MessageError, MessageError, MessageError, BrokerError, type(None)]
        assert [type(outcome) for outcome in outcomes] == kinds
        assert "no stream takes subject 'nobody.listens'" in str(outcomes[4])
        # Sent again with the same id, as after a confirmation that got lost: the stream has it once.
        assert await sink.publish(messages[:1]) == [None]
        await bench.publish(Message(id="last"))
        deliveries: list[Delivery] = []
        while ids(deliveries)[-1:] != ["last"]:
            deliveries += await received(subscription)
        assert ids(deliveries) == ["a", "f", "last"]
        assert [delivery.provenance["subject"].partition(".")[2] for delivery in deliveries[:2]] == [
            "paid.in_full",
            "_._",
        ]
        who = subscription.identity.resolve(deliveries[0])
        assert (who.id, who.type, who.source, deliveries[0].key) == ("a", "paid.in full", "shop", "k ü")
        assert b"all" not in dict(deliveries[0].headers).values()


async def test_sink_without_a_stream_says_at_start_how_to_make_one(nats_server: NatsServer) -> None:
    with pytest.raises(ConfigError, match=r"no stream .* takes subject 'void\.>'; create one"):
        await Nats(nats_server.url).subject("void.{type}").open()
    async with NatsBench(nats_server) as bench:
        with pytest.raises(ConfigError, match="does not exist"):
            await Nats(nats_server.url).subject("void", stream="VOID").open()
        with pytest.raises(ConfigError, match=r"no stream .* takes subject 'void'"):
            await Nats(nats_server.url).subject("void", stream=bench.stream).open()


async def test_dead_message_is_copied_with_id_and_headers_and_terminated(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, NatsBench(nats_server) as dead:
        with pytest.raises(ConfigError, match=r"in stream .* itself"):
            await opened(bench, dead_letter=f"{bench.stream}.dead")
        with pytest.raises(ConfigError, match=r"no stream .* takes dead_letter='nowhere'"):
            await opened(bench, dead_letter="nowhere")
        subscription = await opened(bench, dead_letter=f"{dead.stream}.dead")
        headers = (("x", b"1"), ("blob", b"\xff"), ("x", b"2"), ("Nats-Expected-Last-Sequence", b"0"))
        await bench.publish(Delivery(body=b"body", properties={"message_id": "a"}, headers=headers))
        [delivery] = await received(subscription)
        await subscription.bury(delivery, "exhausted")
        [buried] = await received(await opened(dead))
        assert (ids([buried]), buried.body) == (["a"], b"body")
        assert buried.headers[1:] == (
            *headers[:3],
            ("oncebox-reason", b"exhausted"),
            ("oncebox-origin", f"{bench.stream}:1".encode()),
        )
        await bench.heard(subscription)
        async with nats_of(nats_server.url) as js:
            async with asyncio.timeout(30):
                while (await js.consumer_info(bench.stream, "billing")).num_ack_pending:
                    pass


async def test_dead_message_that_could_not_be_copied_is_delivered_again(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "AGAIN_SECONDS", 0)
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        await js.add_stream(name=f"{bench.stream}D", subjects=[f"dead.{bench.stream}"])
        subscription = await opened(bench, dead_letter=f"dead.{bench.stream}")
        await js.delete_stream(f"{bench.stream}D")
        await bench.publish(Message(id="a"))
        [delivery] = await received(subscription)
        with pytest.raises(BrokerUnavailable, match="no stream takes subject 'dead"):
            await subscription.bury(delivery, "exhausted")
        [again] = await received(subscription)
        assert (ids([again]), again.deliveries) == (["a"], 2)
        await subscription.bury(delivery, "exhausted")
        assert (await js.consumer_info(bench.stream, "billing")).num_ack_pending == 1, "a late one is ignored"


async def test_dead_message_without_a_place_for_it_is_terminated(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        told = await (await bench.link()).subscribe(
            f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{bench.stream}.billing"
        )
        subscription = await opened(bench)
        await bench.publish(Message(id="a"))
        [delivery] = await received(subscription)
        await subscription.bury(delivery, "exhausted")
        assert b'"stream_seq":1' in (await told.next_msg(timeout=10)).data
        assert (await js.consumer_info(bench.stream, "billing")).num_ack_pending == 0


async def test_double_ack_returns_when_the_server_has_heard(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        subscription = await opened(bench, double_ack=True)
        await bench.publish(*(Message(id=str(number)) for number in range(20)))
        deliveries: list[Delivery] = []
        while len(deliveries) < 20:
            deliveries += await received(subscription)
        await subscription.ack(deliveries)
        info = await js.consumer_info(bench.stream, "billing")
        assert info.num_ack_pending == 0


async def test_what_was_confirmed_survives_kill_9_and_receiving_goes_on() -> None:
    with make_server() as server:
        async with NatsBench(server) as bench:
            # Shorter than anybody waits here, longer than a machine may stand still.
            subscription = await opened(bench, visibility_seconds=6)
            sink = Nats(server.url).subject(f"{bench.stream}.x")
            await sink.open()
            bench.stack.push_async_callback(sink.close)
            assert await sink.publish([Message(id="a"), Message(id="b")]) == [None, None]
            held = [*await received(subscription, limit=1), *await received(subscription, limit=1)]
            waiting = asyncio.create_task(subscription.receive(1))
            await bench.heard(subscription)
            server.kill9()
            with pytest.raises(BrokerUnavailable):
                await waiting
            await subscription.ack(held)  # nobody hears it
            with pytest.raises(BrokerUnavailable, match="can't be reached"):
                await subscription.receive(1)
            with pytest.raises(BrokerUnavailable):
                await sink.publish([Message(id="c")])
            server.start()
            assert await sink.publish([Message(id="c")]) == [None]
            seen: set[str] = set()
            while seen != {"a", "b", "c"}:
                deliveries = await received(subscription)
                seen.update(ids(deliveries))
                await subscription.ack(deliveries)


async def test_deleted_consumer_ends_receive_with_its_name(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        subscription = await opened(bench)
        waiting = asyncio.create_task(received(subscription))
        await bench.heard(subscription)
        await js.delete_consumer(bench.stream, "billing")
        with pytest.raises(BrokerUnavailable, match=f"{bench.stream}/billing: the consumer is gone"):
            await waiting


async def test_consumer_that_may_hand_out_no_more_gives_what_it_has_and_goes_on_after_the_ack(
    nats_server: NatsServer,
) -> None:
    async with NatsBench(nats_server) as bench, nats_of(nats_server.url) as js:
        await js.add_consumer(bench.stream, api.ConsumerConfig(durable_name="billing", max_ack_pending=2))
        subscription = await opened(bench)
        await bench.publish(*(Message(id=str(number)) for number in range(5)))
        first: list[Delivery] = []
        while len(first) < 2:
            first += await received(subscription)
        assert ids(first) == ["0", "1"], "three more are there, but two are in hand"
        waiting = asyncio.create_task(received(subscription))
        await bench.heard(subscription)
        await subscription.ack(first)
        seen = [*first, *await waiting]
        while len(seen) < 5:
            await subscription.ack(seen)
            seen += await received(subscription)
        assert [(each.properties["message_id"], each.deliveries) for each in seen] == [
            (str(n), 1) for n in range(5)
        ]


async def test_limits_on_requests_are_named(nats_server: NatsServer) -> None:
    async with NatsBench(nats_server) as bench:
        config = {"durable_name": "billing", "name": "billing", "ack_policy": "explicit", "max_batch": 2}
        await (await bench.link()).request(
            f"$JS.API.CONSUMER.CREATE.{bench.stream}.billing",
            json.dumps({"stream_name": bench.stream, "config": config}).encode(),
            timeout=10,
        )
        subscription = await opened(bench)
        with pytest.raises(BrokerUnavailable, match="Exceeded MaxRequestBatch of 2; take that limit off"):
            await received(subscription)


async def test_message_that_is_larger_than_a_batch_comes_alone(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "BATCH_BYTES_MAX", 1_000)
    async with NatsBench(nats_server) as bench:
        subscription = await opened(bench)
        await bench.publish(Message(id="a"), Message(id="b", payload=b"x" * 5_000), Message(id="c"))
        assert [ids(await received(subscription)) for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_server_that_falls_silent_is_noticed(
    nats_server: NatsServer, proxy_to: Callable[[int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasten(patch: pytest.MonkeyPatch) -> None:
        for module in (pull, source):
            patch.setattr(module, "REPLY_SECONDS", 1)
        patch.setattr(pull, "LINGER_SECONDS", 0.5)

    way = proxy_to(nats_server.port)
    async with NatsBench(nats_server) as bench:
        subscription = Nats(way.through(nats_server.url)).stream(
            bench.stream, consumer="billing", create=True
        )
        await subscription.open()
        bench.stack.push_async_callback(subscription.close)
        # Only while it is silent: a server that takes a second to answer is no loss to anybody else.
        with monkeypatch.context() as patch:
            hasten(patch)
            waiting = asyncio.create_task(received(subscription))
            await eventually_async(lambda: subscription._pull is not None or waiting.done())
            way.go_silent()
            with pytest.raises(BrokerUnavailable, match=r"does not answer|was lost"):
                await waiting
        way.resume()
        await bench.publish(Message(id="a"))
        assert ids(await received(subscription)) == ["a"]
        waiting = asyncio.create_task(received(subscription))
        await bench.heard(subscription)
        hasten(monkeypatch)
        way.go_silent()
        async with asyncio.timeout(20):
            await subscription.close()
        with pytest.raises(BrokerUnavailable):
            await waiting


async def test_sources_and_sinks_share_a_connection_and_the_last_closes_it(
    nats_server: NatsServer, proxy_to: Callable[[int], Proxy]
) -> None:
    way = proxy_to(nats_server.port)
    async with NatsBench(nats_server) as bench:
        nats = Nats(way.through(nats_server.url))
        one = nats.stream(bench.stream, consumer="one", create=True)
        two = nats.stream(bench.stream, consumer="two", create=True)
        sink = nats.subject(f"{bench.stream}.x")
        assert way.connections == 0
        for each in (one, two, sink):
            await each.open()
        assert way.connections == 1
        await one.close()
        assert await sink.publish([Message(id="a")]) == [None]
        assert ids(await received(two)) == ["a"]
        await sink.close()
        await two.close()
        await eventually_async(lambda: way.connections == 0)
