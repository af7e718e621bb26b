"""pg_stat_statements has room for a few thousand texts. What carries an id or a token in its text must count as one
with the others, or the user's own statements are pushed out."""

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from oncebox import App, Inbox, Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate
from tests.conftest import missing
from tests.servers import Postgres, Unavailable
from tests.waiting import eventually_async

pytestmark = pytest.mark.xdist_group("statistics")
MESSAGES = 40
FEW = 15
"""Some are only sent from time to time, and may come for the first time in the second round."""


@pytest.fixture(scope="module")
def counting() -> Iterator[Postgres]:
    try:
        server = Postgres("shared_preload_libraries=pg_stat_statements")
    except Unavailable as error:
        missing(error)
    with server:
        yield server


@pytest.fixture
def url(counting: Postgres) -> Iterator[str]:
    url = counting.create_database()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE EXTENSION pg_stat_statements; CREATE TABLE effect (id text)")
    yield url
    counting.drop_database(url)


def texts(url: str) -> set[str]:
    """What is counted apart, in this database."""
    with psycopg.connect(url, autocommit=True) as server:
        found = server.execute(
            "SELECT s.query FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
            "WHERE d.datname = current_database()"
        )
        return {row[0] for row in found}


def few_more(url: str, work: Callable[[int], Any]) -> None:
    work(0)
    before = texts(url)
    work(1)
    more = texts(url) - before
    assert len(more) < FEW, more


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize(
    "policy",
    [{}, {"batch": 10}, {"durability": "group"}, {"mode": "stored"}, {"mode": "stored", "batch": 10}],
    ids=str,
)
async def test_messages_are_not_statements_of_their_own(
    url: str, driver: str, policy: dict[str, Any]
) -> None:
    memory = Memory()
    app = App(url if driver == "psycopg" else url.replace("postgresql", "postgresql+asyncpg", 1))
    billing = app.consumer("billing", memory.queue("payments"), concurrency=1, **policy)

    if driver == "psycopg":

        @billing.handler()
        def captured(message: Message, conn: psycopg.Connection) -> str:
            conn.execute("INSERT INTO effect VALUES (%s)", (message.id,))
            return message.id

    else:

        @billing.handler()
        async def captured_async(message: Message, conn: asyncpg.Connection) -> str:
            await conn.execute("INSERT INTO effect VALUES ($1)", message.id)
            return message.id

    def done() -> int:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT count(*) FROM effect").fetchone()
            assert row is not None
            return int(row[0])

    async def work(turn: int) -> None:
        memory.put("payments", *(Message(id=f"evt-{turn}-{n}", payload=b"{}") for n in range(MESSAGES)))
        await eventually_async(lambda: done() == MESSAGES * (turn + 1))

    async with app.running():
        await work(0)
        before = texts(url)
        await work(1)
        more = texts(url) - before
    assert len(more) < FEW, more


@pytest.mark.parametrize("is_open", [False, True], ids=["opens the transaction", "inside of one"])
def test_guarded_messages_are_not_either(url: str, is_open: bool) -> None:
    inbox = Inbox("billing")

    def work(turn: int) -> None:
        with psycopg.connect(url) as connection:
            for n in range(MESSAGES):
                if is_open:
                    connection.execute("SELECT 1")
                with inbox.once(connection, f"evt-{turn}-{n}", payload=b"{}") as claim:
                    if claim.first:
                        connection.execute("INSERT INTO effect VALUES (%s)", (claim.key.id,))
                connection.commit()

    few_more(url, work)
