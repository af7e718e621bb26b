"""The parcel platform on PostgreSQL and RabbitMQ: processes, database and broker are killed under it."""

import asyncio
import os
from pathlib import Path

import pytest

from examples.delivery.chain import Chain, Options
from tests.brokers.chaos import SOAKING
from tests.servers import Postgres
from tests.servers.rabbitmq import RabbitMQServer

pytestmark = pytest.mark.xdist_group("rabbitmq")


@pytest.mark.timeout(1800 if SOAKING else 400)
def test_every_scan_has_one_effect_in_every_service(
    rabbitmq: RabbitMQServer, disposable_postgres: Postgres, tmp_path: Path
) -> None:
    def database() -> None:
        disposable_postgres.kill9()
        disposable_postgres.start()

    restarts = 3 if SOAKING else 1
    options = Options(
        scans=1500 if SOAKING else 25,
        kills=40 if SOAKING else 2,
        seed=int.from_bytes(os.urandom(4)),
        database=disposable_postgres.url(),
        broker=rabbitmq.url,
    )
    chain = Chain(options, tmp_path, [database, rabbitmq.restart] * restarts)
    figures = asyncio.run(chain.run())
    # When nothing moves any more, the services' logs end with where their threads and tasks are.
    logs = "\n".join(f"{log.name}: {log.read_text()[-20_000:]}" for log in sorted(tmp_path.glob("*.log")))
    assert (figures.lost, figures.doubled) == (0, 0), f"{options} {figures}\n{chain.standing}\n{logs}"
    assert (figures.stored, figures.moved, figures.notified) == (options.scans,) * 3
    assert figures.kills == options.kills
    assert figures.sent > options.scans
