"""The kit on replay policies: what a replay must leave out, and what it must be able to write again."""

from typing import Any

import pytest

from oncebox import App, Consumer, Message, Tx
from oncebox.testing import NotOnce, prove_once
from tests.testing.conftest import run_sql
from tests.testing.handlers import MESSAGE, handled_by, pay


def empties(consumer: Consumer, statement: str) -> Consumer:
    """A reset that does this."""
    import sqlite3

    @consumer.reset
    def reset(conn: sqlite3.Connection) -> None:
        conn.execute(statement)

    return consumer


def enters(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
    conn.execute("INSERT INTO entry (payment, n) VALUES (?, 1)", (payment["payment"],))


def test_a_rebuild_with_a_reset_leaves_the_rows_as_they_were(lite: App, sqlite_url: str) -> None:
    page = empties(handled_by(lite, enters, replay="rebuild"), "DELETE FROM entry")
    assert prove_once(page, MESSAGE).replayed == 1
    assert run_sql(sqlite_url, "SELECT payment FROM entry") == [("p-1",)]


def test_a_reset_that_forgets_a_table_is_found(lite: App) -> None:
    page = empties(handled_by(lite, lambda p, conn, tx: pay(p, conn), replay="rebuild"), "DELETE FROM entry")
    with pytest.raises(NotOnce, match="replayed after a reset") as caught:
        prove_once(page, MESSAGE)
    assert caught.value.fault == "replay"


def test_what_is_sent_is_left_out_of_a_replay(lite: App) -> None:
    mailer = lite.consumer("mailer", mode="stored")

    @mailer.handler("mail")
    def mail(body: dict[str, str]) -> None:
        pass

    def sends(payment: dict[str, Any], conn: Any, tx: Tx) -> None:
        tx.send("mailer", "mail", {"to": "ada"})

    assert prove_once(handled_by(lite, sends, replay="suppress_effects"), MESSAGE).replayed == 1


def test_a_handler_that_fails_in_a_replay_is_found(lite: App) -> None:
    import sqlite3

    page = lite.consumer("page", replay="rebuild")

    @page.handler("paid")
    def paid(payment: dict[str, Any], message: Message, conn: sqlite3.Connection) -> None:
        if message.replay:
            raise ValueError("no")

    with pytest.raises(NotOnce, match="ValueError in a replay") as caught:
        prove_once(page, MESSAGE)
    assert caught.value.fault == "replay"
