"""What a terminal of 80 columns shows: nothing is cut, and nothing empty takes room."""

import asyncio
import io
import os
import pty
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from oncebox import App, Dead, Message
from oncebox.cli.tables import Rows
from oncebox.schema import migrate
from tests.cli.kit import COMMAND, Done, environment, oncebox

LONG = "0198c0de-1234-7000-8000-123456789abc"


def _shown(rows: Rows, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(rows)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_column_that_is_empty_everywhere_is_left_out() -> None:
    rows = Rows("dead", ("source", "id", "n"), right=("n",))
    rows.add("", "evt-1", "7")
    assert [line for line in _shown(rows, 80) if "source" in line] == []
    assert "│ evt-1 │ 7 │" in _shown(rows, 80)


def test_sentences_wrap_and_words_are_whole() -> None:
    rows = Rows("audit", ("id", "why", "result"))
    rows.add(LONG, "the account exists now, and was paid for", "waiting")
    shown = _shown(rows, 70)
    assert max(map(len, shown)) <= 70
    for word in (LONG, "account", "waiting"):
        assert any(word in line for line in shown)
    assert any(line.startswith("┃ id") for line in shown)


def test_rows_become_blocks_where_words_would_not_fit() -> None:
    rows = Rows("audit", ("id", "why", "result"))
    rows.add(LONG, "the account exists now", "waiting")
    rows.add("evt-2", "", "done")
    assert _shown(rows, 50) == [
        "audit",
        "",
        f"id      {LONG}",
        "why     the account exists now",
        "result  waiting",
        "",
        "id      evt-2",
        "result  done",
    ]


async def _work(url: str) -> None:
    app = App(url)
    billing = app.consumer("billing")

    @billing.handler("payment.captured")
    async def captured(payment: dict[str, int]) -> None:
        raise Dead("no such account")

    for each in ("evt-1", LONG):
        await billing.process(Message(id=each, type="payment.captured", payload={}))
    await app.aclose()


@pytest.fixture
def url(sqlite_url: str) -> str:
    """A database with two dead messages, and nobody at work."""
    migrate(sqlite_url)
    asyncio.run(_work(sqlite_url))
    return sqlite_url


def _at_80_columns(*words: str, cwd: Path) -> Done:
    """Run a command on a terminal."""
    ours, theirs = pty.openpty()
    shown = b""
    try:
        running = subprocess.Popen(
            [*COMMAND, *words],
            cwd=cwd,
            env=environment({"COLUMNS": "80"}),
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        os.close(theirs)
        while True:
            try:
                came = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed.
                break
            if not came:
                break
            shown += came
        _, said = running.communicate(timeout=60)
    finally:
        os.close(ours)
    return Done(running.returncode, shown.decode().replace("\r\n", "\n"), said.decode())


def _fits(done: Done, *words: str) -> None:
    assert done.code == 0, done.err
    # Paths of databases, above the tables, are as long as they are.
    assert max(len(line.rstrip()) for line in done.out.splitlines() if "sqlite:" not in line) <= 80
    assert "…" not in done.out
    for word in words:
        assert word in done.out


def test_status_dead_list_and_audit_fit(url: str, tmp_path: Path) -> None:
    def narrow(*words: str) -> Done:
        return _at_80_columns(*words, "--database", url, cwd=tmp_path)

    # Nothing waits, so that no worker is missed.
    status = narrow("status")
    _fits(status, "billing", "retrying", "terminal 2", "duplicates", "on record")
    assert "No worker process" not in status.out
    _fits(narrow("dead", "list"), LONG, "payment.captured", "terminal")
    _fits(narrow("dead", "redrive", LONG, "--reason", "the account exists now"))
    _fits(narrow("audit"), LONG, "the account exists now")
    assert "No worker process" in narrow("status").out


def test_doctor_does_not_pad_its_lines(url: str, tmp_path: Path) -> None:
    done = oncebox("doctor", "--database", url, cwd=tmp_path)
    assert "2 terminal" in done.out
    assert [line for line in done.out.splitlines() if line.endswith(" ")] == []


def test_flags_are_shown_without_a_value(tmp_path: Path) -> None:
    done = oncebox("status", "--help", cwd=tmp_path)
    assert "SECONDS" in done.out
    assert "bool" not in done.out.lower()
