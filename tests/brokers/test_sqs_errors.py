"""SQS that is missing, refuses, or can't be reached: what is said then, and that it goes on afterwards."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from oncebox.brokers.sqs import Sqs
from oncebox.errors import BrokerUnavailable, ConfigError
from oncebox.message import Message
from tests.brokers.sqs_bench import SqsBench, client, moto, new_name, session
from tests.brokers.suite import ids, received
from tests.servers.moto import REGION, Moto
from tests.servers.process import free_port
from tests.servers.proxy import Proxy


def at(url: str) -> Sqs:
    return Sqs(region=REGION, endpoint_url=url, session=session())


async def test_missing_queue_is_named_with_how_to_create_it() -> None:
    name, fifo = new_name(), new_name(".fifo")
    for thing in (at(moto().url).queue(name), at(moto().url).sink(name)):
        with pytest.raises(ConfigError) as missing:
            await thing.open()
        assert f"no queue '{name}' in 127.0.0.1:{moto().port}" in str(missing.value)
        assert f"aws sqs create-queue --queue-name {name}`, or pass create=True" in str(missing.value)
        await thing.close()
    with pytest.raises(ConfigError, match="--attributes FifoQueue=true"):
        await at(moto().url).queue(fifo).open()


async def test_missing_queue_is_created_when_asked() -> None:
    for name in (new_name(), new_name(".fifo")):
        source = at(moto().url).queue(name, create=True)
        await source.open()
        await source.close()
        await source.open()
        await source.close()
        async with client() as bare:
            url = (await bare.get_queue_url(QueueName=name))["QueueUrl"]
            attributes = (await bare.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
        assert attributes.get("FifoQueue") == ("true" if name.endswith(".fifo") else None)


async def test_unreachable_sqs_is_said_without_what_is_secret() -> None:
    port = free_port()
    source = at(f"http://user:s3cret@127.0.0.1:{port}").queue("payments")
    with pytest.raises(BrokerUnavailable) as away:
        await source.open()
    assert f"queue 'payments': can't reach SQS in 127.0.0.1:{port} (" in str(away.value)
    assert "s3cret" not in str(away.value)
    await source.close()
    sink = at(f"http://127.0.0.1:{port}").sink("payments")
    with pytest.raises(BrokerUnavailable, match="can't reach SQS"):
        await sink.open()
    [answer] = await sink.publish([Message(id="a")])
    assert isinstance(answer, BrokerUnavailable)
    await sink.close()


async def test_wrong_credentials_are_said() -> None:
    with Moto(checks_credentials=True) as strict:
        source = at(strict.url).queue("payments")
        with pytest.raises(ConfigError, match=r"queue 'payments': SQS refuses these credentials"):
            await source.open()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"AWS_DEFAULT_REGION": REGION}, "no AWS credentials"),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "no AWS region"),
    ],
)
def test_missing_settings_are_said(settings: dict[str, str], said: str) -> None:
    script = """
import asyncio
from oncebox.brokers.sqs import Sqs
from oncebox.errors import ConfigError
try:
    asyncio.run(Sqs().queue("payments").open())
except ConfigError as error:
    print(error)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nothing = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | nothing | {"AWS_SHARED_CREDENTIALS_FILE": os.devnull} | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said in done.stdout, done.stderr


@pytest.mark.parametrize(
    "name", ["", "a b", "x" * 81, "a.b", "arn:aws:sqs:eu-west-1:1:payments", "https://sqs.example/1/"]
)
def test_name_that_can_not_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no queue's name or URL"):
        Sqs().queue(name)


def test_values_that_can_not_be_are_refused() -> None:
    wrong: Any = ({"visibility_seconds": 0}, {"visibility_seconds": 43_201}, {"wait_seconds": 21})
    for words in wrong:
        with pytest.raises(ConfigError, match="whole number of seconds"):
            Sqs().queue("payments", **words)
    with pytest.raises(ConfigError, match="http://localhost:4566") as refused:
        Sqs(endpoint_url="localhost:4566/s3cret")
    assert "s3cret" not in str(refused.value)


async def test_queue_that_is_deleted_under_way_is_unavailable_and_named() -> None:
    async with SqsBench() as bench:
        source = await bench.source()
        await bench.publish(Message(id="a"))
        held = await received(source)
        async with client() as bare:
            await bare.delete_queue(QueueUrl=(await bare.get_queue_url(QueueName=bench.name))["QueueUrl"])
        with pytest.raises(BrokerUnavailable, match=f"no queue '{bench.name}'"):
            await received(source)
        with pytest.raises(BrokerUnavailable, match=f"no queue '{bench.name}'"):
            await source.ack(held)
        [answer] = await bench.sink.publish([Message(id="b")])
        assert isinstance(answer, BrokerUnavailable)
        await source.close()


async def test_lost_connection_is_unavailable_and_the_next_receive_connects_again(
    proxy_to: Callable[[int], Proxy],
) -> None:
    proxy = proxy_to(moto().port)
    name = new_name()
    source = at(proxy.through(moto().url)).queue(name, create=True, wait_seconds=1)
    sink = at(moto().url).sink(name)
    await source.open()
    await sink.open()
    assert await sink.publish([Message(id="a")]) == [None]
    held = await received(source)
    proxy.cut(refuse=True)
    with pytest.raises(BrokerUnavailable, match="can't reach SQS"):
        await received(source)
    for answering in (
        source.nack(held[0], 1),
        source.extend(held, 1),
        source.ack(held),
        source.release(held),
    ):
        await asyncio.gather(answering, return_exceptions=True)
    proxy.pass_through()
    assert await sink.publish([Message(id="b")]) == [None]
    assert ids(await received(source)) == ["b"]
    proxy.cut(refuse=True)
    await source.close()
    await sink.close()


async def test_silent_sqs_does_not_keep_a_source_from_closing(proxy_to: Callable[[int], Proxy]) -> None:
    proxy = proxy_to(moto().port)
    name = new_name()
    source, sink = (
        at(proxy.through(moto().url)).queue(name, create=True, wait_seconds=1),
        at(moto().url).sink(name),
    )
    await source.open()
    await sink.open()
    assert await sink.publish([Message(id="a")]) == [None]
    await sink.close()
    assert ids(await received(source)) == ["a"]
    waiting = asyncio.create_task(source.receive(1))
    await asyncio.sleep(0)
    proxy.go_silent()
    async with asyncio.timeout(20):
        await source.close()
    with pytest.raises(BrokerUnavailable):
        await waiting
