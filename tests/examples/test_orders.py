"""examples/orders.py: two kinds of events, from Kafka and, by changing one line, from RabbitMQ.

Kafka is the mock cluster here: real clients and the real protocol, no real broker.
"""

import importlib.util
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.kafka_bench import kafka_cluster
from tests.conftest import missing
from tests.examples.conftest import ROOT, Rows
from tests.servers.kafka import Kafka
from tests.servers.process import Unavailable
from tests.servers.rabbitmq import RabbitMQServer, shared_node

__all__ = ["kafka_cluster"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def rabbitmq() -> RabbitMQServer:
    try:
        return shared_node()
    except Unavailable as error:
        missing(error)


def load(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's text as a module."""
    path = folder / "orders.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"example_orders_{next(_numbers)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def one_line_changed(text: str) -> str:
    """The line that names Kafka gives way to the one that is commented out below it."""
    changed, count = re.subn(r"^events, .*\n# RabbitMQ: (events, .*\n)", r"\1", text, flags=re.MULTILINE)
    assert count == 1
    return changed


async def handles_every_event_once(example: Any, rows: Rows) -> None:
    await example.main(10)
    assert rows("SELECT count(*), count(DISTINCT id) FROM shop_order") == [(10, 10)]
    assert rows("SELECT count(*) FROM shop_order WHERE paid_cents = total_cents") == [(10,)]
    assert rows("SELECT count(*) FROM oncebox.dead") == [(0,)]
    assert rows("SELECT count(*) FROM oncebox.ledger") == [(20,)]


@pytest.fixture
def text(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("ONCEBOX_DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    return (ROOT / "examples" / "orders.py").read_text()


async def test_from_kafka(
    text: str, rows: Rows, kafka_cluster: Kafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = kafka_cluster.create_topic(partitions=2)
    monkeypatch.setenv("KAFKA", kafka_cluster.servers)
    example = load(
        text.replace("shop-events", topic).replace('group="orders"', f'group="{topic}"'),
        tmp_path,
        monkeypatch,
    )
    await handles_every_event_once(example, rows)


@pytest.mark.xdist_group("rabbitmq")
async def test_from_rabbitmq_by_changing_one_line(
    text: str, rows: Rows, rabbitmq: RabbitMQServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue = rabbitmq.new_name()
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)
    example = load(one_line_changed(text).replace("shop-events", queue), tmp_path, monkeypatch)
    await handles_every_event_once(example, rows)
