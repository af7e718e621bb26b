"""What the three services share: where they are, how they reach each other, and what they say."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from typing import Any

import msgspec

from oncebox.brokers.contract import Sink, Source
from oncebox.brokers.memory import Memory
from oncebox.brokers.remote import RemoteMemory
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/delivery.db"
BROKER = os.environ.get("DELIVERY_BROKER", "")
"""`amqp://…`, the address of a `Memory` in another process, or nothing: then this process has its own."""
PREFIX = os.environ.get("DELIVERY_PREFIX", "delivery-")
PROVIDER = os.environ.get("DELIVERY_PROVIDER", "http://127.0.0.1:1")
TOKEN = os.environ.get("DELIVERY_TOKEN", "a-token-of-the-scanners")

SCANNERS = "scanners"
"""The source that scans name, whichever way they come: it is part of what tells two of them apart."""
QUEUES = ("scans", "tracking", "notices")
TABLES = {
    # No unique keys: whatever was done twice would be there twice.
    "intake": ["scan (id text NOT NULL, parcel text NOT NULL, version integer NOT NULL)"],
    "tracking": [
        "parcel (id text PRIMARY KEY, version integer NOT NULL, status text NOT NULL)",
        "move (scan text NOT NULL, parcel text NOT NULL, version integer NOT NULL)",
    ],
    "notify": [],
}


class Scan(msgspec.Struct):
    """A parcel was seen. `version` counts the scans of a parcel."""

    scan: str
    parcel: str
    version: int
    status: str
    phone: str


def sql(text: str) -> str:
    """The two drivers spell placeholders differently; nothing else here does."""
    return text if URL.startswith("sqlite") else text.replace("?", "%s")


def connect(url: str) -> Any:
    """A connection of the driver's own."""
    if url.startswith("sqlite"):
        import sqlite3

        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url)


def set_up(service: str, url: str) -> None:
    """The tables of a service. A real one does this in its migrations."""
    migrate(url)
    with closing(connect(url)) as connection:
        for table in TABLES[service]:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        connection.commit()


class Broker:
    """The one broker between the services, as queues by name."""

    def __init__(self, address: str, prefix: str) -> None:
        self._prefix = prefix
        self._rabbit: Any = None
        self._memory: Memory | RemoteMemory
        if address.startswith("amqp"):
            from oncebox.brokers.rabbitmq import RabbitMQ

            self._rabbit = RabbitMQ(address)
        elif address:
            self._memory = RemoteMemory(address)
        else:
            self._memory = memory(prefix)

    def queue(self, name: str) -> Source:
        """What a service consumes from."""
        if self._rabbit is not None:
            source: Source = self._rabbit.queue(self._prefix + name, create=True, kind="quorum")
            return source
        return self._memory.queue(self._prefix + name)

    def to(self, name: str) -> Sink:
        """What leads into a queue."""
        if self._rabbit is not None:
            sink: Sink = self._rabbit.exchange("", routing_key=self._prefix + name)
            return sink
        return self._memory.topic(self._prefix + name)


def memory(prefix: str) -> Memory:
    """A broker in this process, with the queues of all three."""
    made = Memory()
    for name in QUEUES:
        made.queue(prefix + name)
        made.bind(prefix + name, prefix + name)
    return made
