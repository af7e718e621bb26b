"""The kit on handlers that are wrong: each is caught, and its fault is named."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncebox import App
from oncebox.brokers.memory import Memory
from oncebox.testing import NotOnce, prove_once
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
