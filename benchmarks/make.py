"""Ways to name contenders in a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.comparison import Make
from benchmarks.contenders.base import Contender
from benchmarks.contenders.library import Library
from benchmarks.contenders.peer import Peer
from benchmarks.contenders.pgbench import Pgbench
from benchmarks.load import Load


def library(label: str, concurrency: int = 1, load: Callable[[], Load] = Load, **words: Any) -> Make:
    """The whole library on the driver asked for."""

    def make(driver: str) -> Contender:
        return Library(label, driver, concurrency, load(), **words)

    return make


def zipf() -> Load:
    """Accounts of which the first has a tenth of all messages."""
    return Load(accounts="zipf")


def zipf_keyed() -> Load:
    """The same, with the account as the ordering key."""
    return Load(accounts="zipf", keyed=True)


def keyed() -> Load:
    """Uniform accounts, with the account as the ordering key."""
    return Load(keyed=True)


def sized(payload_bytes: int) -> Callable[[], Load]:
    """Payloads of about this size."""
    return lambda: Load(payload_bytes=payload_bytes)


def peer(name: str, **settings: str) -> Make:
    """A peer with these settings."""
    return lambda driver: Peer(name, settings)


def peers() -> dict[str, Make]:
    """Each with the settings that were best for it, of those that were tried."""
    return {
        "pgqueuer": peer("pgqueuer", PEER_BATCH="100", PEER_CONNECTIONS="16"),
        "procrastinate": peer("procrastinate", PEER_CONCURRENCY="30", PEER_DELETE="never"),
        "dbos": peer("dbos", PEER_HOW="direct", PEER_CONCURRENCY="16"),
    }


def pgbench(script: str, concurrency: int = 1) -> Make:
    """A script of pgbench."""
    return lambda driver: Pgbench(script, concurrency)
