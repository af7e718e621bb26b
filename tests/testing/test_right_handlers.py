"""The kit on handlers that are right: whatever they are made of, nothing is found."""

import asyncio
import sqlite3
import uuid
from datetime import datetime, timezone
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from oncebox import App, Backoff, Call, Dead, Message, Tx
from oncebox.brokers.memory import Memory
from oncebox.testing import (
    HttpRecorder,
    NotOnce,
    crash_at,
    crash_at_async,
    deliver,
    deliver_async,
    prove_once,
    prove_once_async,
)
from tests.testing import handlers
from tests.testing.conftest import Sql, make_shop, run_sql
from tests.testing.handlers import MESSAGE, handled_by, pay


def messages(count: int) -> list[Message]:
    return [
        Message(id=f"evt-{n}", source="shop", type="paid", payload={"payment": f"p-{n}", "amount": n})
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_database_is_left_as_one_delivery_leaves_it(app: App, sql: Sql, mode: str) -> None:
    proof = prove_once(handled_by(app, handlers.right, mode=mode), MESSAGE)
    assert sql("SELECT balance FROM account") == [(900,)]
    assert sql("SELECT payment, n FROM entry") == [("p-1", 1)]
    assert proof.crash_points > 10
    assert (proof.lines, proof.reruns, proof.duplicates, proof.concurrent) == (proof.lines, 1, 2, 4)
    assert proof.lines >= 5
    assert proof.outcomes[0].result == {"paid": "p-1"}
    assert "your handler" in proof.steps
    assert "crash points" in str(proof)


def test_rows_that_were_there_stay(lite: App, sqlite_url: str) -> None:
    consumer = handled_by(lite, handlers.right)
    prove_once(consumer, messages(1)[0])
    prove_once(consumer, messages(2)[1])
    assert run_sql(sqlite_url, "SELECT payment FROM entry ORDER BY payment") == [("p-1",), ("p-2",)]


def test_several_messages_in_any_order(lite: App, sqlite_url: str) -> None:
    proof = prove_once(handled_by(lite, handlers.right), *messages(3), any_order=True)
    assert proof.orders == 5
    assert run_sql(sqlite_url, "SELECT balance FROM account") == [(1000 - 6,)]


def test_batches_of_stored_messages(app: App, sql: Sql) -> None:
    prove_once(handled_by(app, handlers.right, mode="stored", batch=10), *messages(2), lines_max=1)
    assert sql("SELECT count(*) FROM entry") == [(2,)]


def test_last_write_wins_is_told_when_any_order_is_asked_for(lite: App) -> None:
    def overwrite(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        conn.execute(f"UPDATE account SET balance = {handlers.mark(conn)}", (payment["amount"],))

    consumer = handled_by(lite, overwrite)
    with pytest.raises(NotOnce) as caught:
        prove_once(consumer, *messages(2), any_order=True)
    # Side by side, the later message may already win; one after the other it does for certain.
    assert caught.value.fault in ("concurrent", "order")
    assert "account, id='ada': balance is '1' instead of '2'" in str(caught.value)


def test_times_and_random_ids_may_differ(lite: App, sqlite_url: str) -> None:
    run_sql(sqlite_url, "CREATE TABLE receipt (id text, at text, seconds bigint, said text)")

    def stamp(payment: dict[str, Any], conn: Any, tx: Tx) -> dict[str, str]:
        now = datetime.now(timezone.utc)  # noqa: UP017
        row = (uuid.uuid4().hex, now.isoformat(), int(now.timestamp()), f"at {now} for {payment['payment']}")
        conn.execute(f"INSERT INTO receipt VALUES ({', '.join([handlers.mark(conn)] * 4)})", row)
        return {"id": str(uuid.uuid4())}

    proof = prove_once(handled_by(lite, stamp), MESSAGE)
    assert {"receipt.id", "receipt.at", "receipt.said", "oncebox.result.body"} <= proof.noisy.keys()


def test_numbers_from_a_sequence_may_differ_after_a_crash(pg_url: str) -> None:
    make_shop(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as server:
        server.execute("CREATE TABLE invoice (id serial PRIMARY KEY, number text)")
        server.execute(
            "CREATE TABLE line (id bigint GENERATED ALWAYS AS IDENTITY, invoice int REFERENCES invoice)"
        )

    def bill(payment: dict[str, Any], conn: Any, tx: Tx) -> dict[str, int]:
        (number,) = conn.execute("INSERT INTO invoice (number) VALUES ('') RETURNING id").fetchone()
        conn.execute("UPDATE invoice SET number = %s WHERE id = %s", (f"INV-{number}", number))
        conn.execute("INSERT INTO line (invoice) VALUES (%s), (%s)", (number, number))
        return {"invoice": number}

    proof = prove_once(handled_by(App(pg_url), bill), MESSAGE)
    assert proof.noisy["invoice.number"] == proof.noisy["line.invoice"] == "from a sequence"


def test_column_that_may_differ_can_be_named(lite: App) -> None:
    prove_once(handled_by(lite, handlers.counting), MESSAGE, ignore=("entry.n",))


def test_messages_that_end_otherwise(lite: App, sqlite_url: str) -> None:
    def refuse(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        raise Dead("no such account") if payment["payment"] == "p-1" else RuntimeError("down")

    consumer = handled_by(lite, refuse, retry=Backoff(attempts=2, base_seconds=60))
    first, second = messages(2)
    proof = prove_once(consumer, first, status="dead")
    assert proof.outcomes[0].reason == "terminal"
    assert prove_once(consumer, second, status="dead", lines_max=2).outcomes[0].reason == "exhausted"
    assert run_sql(sqlite_url, "SELECT count(*) FROM entry") == [(0,)]


def test_handler_that_fails_is_not_proven(lite: App) -> None:
    consumer = handled_by(lite, lambda payment, conn, tx: payment["missing"])
    with pytest.raises(NotOnce, match=r"KeyError: 'missing'") as caught:
        prove_once(consumer, MESSAGE)
    assert caught.value.fault == "failed"
    assert isinstance(caught.value.__cause__, KeyError)


def test_known_message_is_not_proven(lite: App) -> None:
    consumer = handled_by(lite, handlers.right)
    deliver(consumer, MESSAGE, times=1)
    with pytest.raises(NotOnce, match="delivered before"):
        prove_once(consumer, MESSAGE)


def test_what_is_sent_along_is_worked_off_and_compared(app: App, sql: Sql) -> None:
    mailer = app.consumer("mailer", mode="stored")

    @mailer.handler("receipt")
    def receipt(mail: dict[str, str], message: Message) -> None:
        return None

    def send(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        pay(payment, conn)
        tx.send("mailer", "receipt", {"to": "ada"})

    proof = prove_once(handled_by(app, send), MESSAGE, lines_max=2)
    assert proof.steps.count("your handler") == 2


def test_effects_may_reach_outside_and_are_parked_when_nobody_knows(app: App) -> None:
    recorder = HttpRecorder()
    http = __import__("httpx").Client(transport=recorder, base_url="https://provider.example")
    mailer = app.consumer("mailer", mode="stored")

    @mailer.effect("paid")
    def charge(payment: dict[str, Any], call: Call) -> None:
        http.post("/charges", headers={"Idempotency-Key": call.idempotency_key})

    proof = prove_once(mailer, MESSAGE, outside=[recorder])
    assert proof.crash_points > 10
    assert len({call.idempotency_key for call in recorder.calls}) == 1


def test_call_without_a_key_is_caught_when_it_is_retried(lite: App) -> None:
    recorder = HttpRecorder()
    http = __import__("httpx").Client(transport=recorder, base_url="https://provider.example")
    mailer = lite.consumer("mailer", mode="stored")

    @mailer.effect("paid", on_unknown="retry")
    def charge(payment: dict[str, Any], call: Call) -> None:
        http.post("/charges")

    with pytest.raises(
        NotOnce, match=r"POST https://provider\.example/charges was done 2 times instead of 1"
    ):
        prove_once(mailer, MESSAGE, outside=[recorder])


def test_requests_in_a_handler_are_named_without_a_network(lite: App) -> None:
    recorder = HttpRecorder()
    http = __import__("httpx").Client(transport=recorder)
    with pytest.raises(NotOnce, match=r"it requests POST provider\.example"):
        prove_once(
            handled_by(lite, lambda p, c, tx: http.post("https://provider.example/x") and None), MESSAGE
        )


def test_long_handlers_and_publications(app: App, sql: Sql) -> None:
    broker = Memory()
    app = App(app.database, sink=broker.topic("out"))
    consumer = app.consumer("long", mode="stored")
    if app.database.dialect == "sqlite":

        @consumer.handler("paid", long=True)
        def on_sqlite(payment: dict[str, Any], conn: sqlite3.Connection, tx: Tx) -> None:
            pay(payment, conn)
            tx.publish("receipt", {"payment": payment["payment"]})
    else:

        @consumer.handler("paid", long=True)
        def on_postgres(payment: dict[str, Any], conn: psycopg.Connection, tx: Tx) -> None:
            pay(payment, conn)
            tx.publish("receipt", {"payment": payment["payment"]})

    prove_once(consumer, MESSAGE, lines_max=2, together=2)
    assert sql("SELECT count(*) FROM entry") == [(1,)]


@pytest.mark.parametrize("driver", ["sqlite", "psycopg", "asyncpg", "sqlalchemy"])
async def test_async_handlers_on_the_tests_own_loop(
    driver: str, sqlite_url: str, request: pytest.FixtureRequest
) -> None:
    url = sqlite_url if driver == "sqlite" else request.getfixturevalue("pg_url")
    make_shop(url)
    app, engine = _async_app(driver, url)
    try:
        proof = await prove_once_async(app, MESSAGE)
    finally:
        if engine is not None:
            await engine.dispose()
    assert proof.crash_points == 6
    assert proof.lines >= 1


@pytest.mark.parametrize("driver", ["sqlite", "asyncpg", "sqlalchemy"])
def test_async_handlers_in_a_plain_test(driver: str, sqlite_url: str, request: pytest.FixtureRequest) -> None:
    url = sqlite_url if driver == "sqlite" else request.getfixturevalue("pg_url")
    make_shop(url)
    app, _ = _async_app(driver, url)
    assert prove_once(app, MESSAGE).crash_points == 6
    assert [outcome.status for outcome in deliver(app, MESSAGE, times=2)] == ["duplicate", "duplicate"]


def _async_app(driver: str, url: str) -> tuple[App, Any]:
    engine = None
    if driver == "sqlalchemy":
        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        app = App(async_sessionmaker(engine))
    else:
        app = App(url.replace("postgresql://", "postgresql+asyncpg://") if driver == "asyncpg" else url)
    consumer = app.consumer("billing")
    statement = "UPDATE account SET balance = balance - 1"
    if driver == "sqlite":

        @consumer.handler("paid")
        async def on_sqlite(payment: dict[str, Any], conn: sqlite3.Connection) -> None:
            conn.execute(statement)
    elif driver == "psycopg":

        @consumer.handler("paid")
        async def on_psycopg(payment: dict[str, Any], conn: psycopg.AsyncConnection) -> None:
            await conn.execute(statement)
    elif driver == "asyncpg":

        @consumer.handler("paid")
        async def on_asyncpg(payment: dict[str, Any], conn: asyncpg.Connection) -> None:
            await conn.execute(statement)
    else:

        @consumer.handler("paid")
        async def on_sqlalchemy(payment: dict[str, Any], session: AsyncSession) -> None:
            await session.execute(text(statement))

    return app, engine


def test_sqlalchemy_sessions(shop_url: str, sql: Sql) -> None:
    engine = create_engine(shop_url.replace("postgresql://", "postgresql+psycopg://"))
    app = App(sessionmaker(engine))
    billing = app.consumer("billing")

    @billing.handler("paid")
    def paid(payment: dict[str, Any], session: Session) -> None:
        session.execute(text("UPDATE account SET balance = balance - 1"))

    try:
        prove_once(app, MESSAGE)
    finally:
        app.close()
        engine.dispose()
    assert sql("SELECT balance FROM account") == [(999,)]


def test_blocking_form_inside_a_loop_names_the_other(lite: App) -> None:
    async def wrong() -> None:
        prove_once(handled_by(lite, handlers.right), MESSAGE)

    with pytest.raises(TypeError, match="_async"):
        asyncio.run(wrong())


@pytest.mark.parametrize("mode", ["inline", "stored"])
def test_delivering_and_crashing_by_hand(app: App, sql: Sql, mode: str) -> None:
    consumer = handled_by(app, handlers.right, mode=mode)
    assert "died before your handler" in crash_at(consumer, MESSAGE, "handle")
    assert sql("SELECT count(*) FROM entry") == [(0,)]
    outcomes = deliver(consumer, MESSAGE)
    assert [outcome.status for outcome in outcomes] == [
        "processed",
        "duplicate",
        "duplicate",
    ] or mode == "stored"
    assert sql("SELECT count(*) FROM entry") == [(1,)]


def test_crash_after_the_commit_and_before_the_ack_costs_a_duplicate(lite: App, sqlite_url: str) -> None:
    consumer = handled_by(lite, handlers.right)
    crash_at(consumer, MESSAGE, "commit", when="after")
    assert [outcome.status for outcome in deliver(consumer, MESSAGE, times=1)] == ["duplicate"]


def test_step_that_is_not_there_is_named(lite: App) -> None:
    with pytest.raises(Exception, match="it has: begin, handle"):
        crash_at(handled_by(lite, handlers.right), MESSAGE, "flush")


def test_delivering_leaves_an_app_that_is_running_alone(lite: App, sqlite_url: str) -> None:
    async def while_running() -> list[tuple[Any, ...]]:
        async with lite.running() as running:
            await crash_at_async(consumer, MESSAGE, "handle")
            await deliver_async(consumer, MESSAGE)
            assert running.worker
            return run_sql(sqlite_url, "SELECT id FROM oncebox_worker WHERE id = ?", running.worker)

    consumer = handled_by(lite, handlers.right)
    assert len(asyncio.run(while_running())) == 1
    assert run_sql(sqlite_url, "SELECT count(*) FROM entry") == [(1,)]
