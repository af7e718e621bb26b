"""The kit on handlers that are wrong: each is caught, and its fault is named."""

import asyncio
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncebox import App, Message
from oncebox.brokers.memory import Memory
from oncebox.errors import ConfigError
from oncebox.testing import NotOnce, lines, loops, prove_once, prove_once_async
from oncebox.testing.tables import state
from tests.testing import handlers
from tests.testing.conftest import Sql, make_shop
from tests.testing.handlers import MESSAGE, Act, handled_by


def fault_of(app: App, act: Act, **words: object) -> NotOnce:
    consumer = handled_by(app, act)
    with pytest.raises(NotOnce) as caught:
        prove_once(consumer, MESSAGE, **words)  # type: ignore[arg-type]
    return caught.value


class _Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to believe that its mail was taken."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() != b".\r\n":
                    pass
            self.wfile.write(b"250 fine\r\n")
            if line.upper().startswith(b"QUIT"):
                return


@pytest.fixture
def port() -> Iterator[int]:
    """A mail server, in this process."""
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_mail_sent_inside_the_handler_is_named(app: App, port: int, sql: Sql) -> None:
    found = fault_of(app, handlers.mailing(port))
    assert found.fault == "outside"
    assert f"sends mail through 127.0.0.1:{port} (handlers.py:" in str(found)
    assert "@consumer.effect" in str(found)
    assert sql("SELECT balance FROM account") == [(1000,)]


def test_own_commit_is_named(app: App, sql: Sql) -> None:
    found = fault_of(app, handlers.committing)
    assert found.fault == "own commit"
    assert "TransactionEnded" in str(found)
    assert sql("SELECT balance FROM account") == [(1000,)]


def test_counter_in_memory_is_named_with_its_variable(app: App) -> None:
    found = fault_of(app, handlers.counting)
    assert found.fault == "memory"
    assert "entry, its row: n is '2' instead of '1'" in str(found) or "n is" in str(found)
    assert "counter of handlers.py" in str(found)
    assert "ignore=('entry.n',)" in str(found)


def test_counter_that_nobody_can_look_into_is_found_by_its_rows(lite: App) -> None:
    assert fault_of(lite, handlers.counting_hidden).fault == "memory"


def test_seen_ids_in_memory_lose_the_message_after_a_rollback(lite: App) -> None:
    handlers.seen.clear()
    found = fault_of(lite, handlers.deduplicating_in_memory)
    assert found.fault == "memory"
    assert "entry: missing (payment='p-1', n='1')" in str(found)


def test_file_written_by_the_handler_is_named(lite: App, tmp_path: Path) -> None:
    found = fault_of(lite, handlers.writing_a_file(tmp_path / "receipt.txt"))
    assert found.fault == "outside"
    assert f"writes the file {tmp_path / 'receipt.txt'}" in str(found)


def test_program_started_by_the_handler_is_named(lite: App) -> None:
    assert "starts the program true" in str(fault_of(lite, handlers.starting_a_program))


def test_bytes_on_a_connection_that_was_open_before_are_named(lite: App) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as sock:
        found = fault_of(lite, handlers.sending_on_an_open_connection(sock))
    assert found.fault == "outside"
    assert "sends to 127.0.0.1:" in str(found)


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left running may come later than usual, as on a machine that is busy."""
    monkeypatch.setattr(loops, "LATE_SECONDS", 30.0)


@pytest.mark.usefixtures("_late")
def test_call_left_to_a_thread_is_named(lite: App, port: int) -> None:
    assert f"connects to 127.0.0.1:{port}" in str(fault_of(lite, handlers.sending_later(port)))


def test_message_put_on_a_broker_by_hand_is_named(lite: App) -> None:
    broker = Memory()
    broker.queue("mails")
    found = fault_of(lite, lambda payment, conn, tx: broker.put("mails", MESSAGE))
    assert "puts a message on the queue mails" in str(found)


def test_replaced_mailer_shows_the_second_mail(lite: App) -> None:
    sent: list[str] = []
    found = fault_of(lite, handlers.recording(sent), outside=[sent])
    assert found.fault == "outside"
    assert "mail about p-1 was done 2 times instead of 1" in str(found)
    assert "(COMMIT)" in str(found) or "your handler" in str(found) or "next message" in str(found)


def test_commit_on_another_connection_survives_the_rollback_and_is_named(pg_url: str) -> None:
    make_shop(pg_url)
    app = App(pg_url)
    found = fault_of(app, handlers.committing_elsewhere(pg_url))
    assert found.fault == "own commit"
    assert "the process dies" in str(found)
    assert "entry: too much (payment='elsewhere', n='1')" in str(found)


def test_half_an_effect_is_found_between_two_lines(pg_url: str) -> None:
    make_shop(pg_url)
    found = fault_of(App(pg_url), handlers.careful_by_hand(pg_url))
    assert found.fault == "own commit"
    assert "dies inside the handler, before handlers.py:" in str(found)


def test_update_lost_between_two_messages_is_found(pg_url: str) -> None:
    make_shop(pg_url)
    consumer = handled_by(App(pg_url), handlers.reading_then_writing)
    messages = [
        Message(id=f"evt-{n}", type="paid", payload={"payment": f"p-{n}", "amount": n * 10}) for n in (1, 2)
    ]
    with pytest.raises(NotOnce) as caught:
        prove_once(consumer, *messages, any_order=True)
    assert caught.value.fault == "concurrent"
    assert "instead of '970'" in str(caught.value)


def test_redelivery_taken_for_a_duplicate_is_found(lite: App) -> None:
    found = fault_of(lite, handlers.trusting_the_first_delivery)
    assert found.fault == "crash"
    assert "the process dies" in str(found)
    assert "entry: missing" in str(found)


def test_call_that_only_the_second_try_makes_is_found(lite: App, port: int) -> None:
    found = fault_of(lite, handlers.alerting_at_the_second_try(port))
    assert found.fault == "outside"
    assert f"connects to 127.0.0.1:{port}" in str(found)


def test_row_that_is_there_after_a_rollback_is_found_even_if_it_is_not_doubled(pg_url: str) -> None:
    make_shop(pg_url)
    app = App(pg_url)
    app.consumer("another", mode="stored")
    found = fault_of(app, handlers.upserting_elsewhere(pg_url))
    assert found.fault == "own commit"
    assert "account: too much (id='ben', balance='0')" in str(found)


def test_second_connection_to_the_same_file_is_named(lite: App, sqlite_url: str) -> None:
    found = fault_of(lite, handlers.writing_to_the_file_itself(sqlite_url.removeprefix("sqlite:///")))
    assert found.fault == "own commit"
    assert "opens a connection of its own to" in str(found)


@pytest.mark.usefixtures("_late")
async def test_task_left_running_is_seen(sqlite_url: str, port: int) -> None:
    make_shop(sqlite_url)
    app = App(sqlite_url)
    billing = app.consumer("billing")
    tasks = set()

    async def send() -> None:
        await asyncio.sleep(0.1)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    @billing.handler("paid")
    async def paid(payment: dict[str, Any]) -> None:
        tasks.add(asyncio.create_task(send()))

    with pytest.raises(NotOnce, match=f"connects to 127.0.0.1:{port}"):
        await prove_once_async(app, MESSAGE)
    await asyncio.gather(*tasks)


def test_database_that_an_app_works_on_is_refused(app: App) -> None:
    async def while_running() -> None:
        async with app.running():
            with pytest.raises(ConfigError, match="an app is at work"):
                await prove_once_async(consumer, MESSAGE)

    consumer = handled_by(app, handlers.right)
    asyncio.run(while_running())


def test_large_database_is_refused(lite: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SIZE_BYTES_MAX", 4096)
    with pytest.raises(ConfigError, match="no database for tests"):
        prove_once(handled_by(lite, handlers.right), MESSAGE)


def test_lines_of_an_installed_app_count(lite: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "is_users", lambda file: False)
    assert prove_once(handled_by(lite, handlers.right), MESSAGE).lines >= 5
