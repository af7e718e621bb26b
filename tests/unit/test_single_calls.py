"""`process` and `process_sync` outside of a running app: what they count, and what counting may not do."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from oncebox import App, Message, errors


def _app(url: str, colour: str) -> App:
    app = App(url)
    billing = app.consumer("billing")

    def captured(message: Message) -> None:
        return None

    async def captured_async(message: Message) -> None:
        return None

    billing.handler("paid")(captured if colour == "def" else captured_async)
    return app


def _tallies(path: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute(
            "SELECT consumer, type, outcome, n FROM oncebox_tally ORDER BY outcome"
        ).fetchall()


COUNTED = [("billing", "paid", "duplicate", 1), ("billing", "paid", "processed", 1)]


def test_counts_of_a_short_script_are_written_when_its_app_is_closed(sqlite_url: str) -> None:
    app = _app(sqlite_url, "def")
    for _ in range(2):
        app.consumers["billing"].process_sync(Message(id="evt-1", type="paid"))
    app.close()
    assert _tallies(sqlite_url.removeprefix("sqlite:///")) == COUNTED


async def test_counts_of_a_short_async_script_are_written_when_its_app_is_closed(sqlite_url: str) -> None:
    app = _app(sqlite_url, "async def")
    for _ in range(2):
        await app.consumers["billing"].process(Message(id="evt-1", type="paid"))
    await app.aclose()
    assert _tallies(sqlite_url.removeprefix("sqlite:///")) == COUNTED


def test_counts_that_can_not_be_written_do_not_hide_a_committed_outcome(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(call: object) -> None:
        raise errors.DatabaseUnavailable("gone")

    app = _app(sqlite_url, "def")
    monkeypatch.setattr(app.tallies, "is_due", lambda: True)
    monkeypatch.setattr(app.sync_state, "side", unreachable)
    assert app.consumers["billing"].process_sync(Message(id="evt-1", type="paid")).status == "processed"
    monkeypatch.undo()
    app.close()
