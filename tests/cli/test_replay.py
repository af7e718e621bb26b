"""`oncebox replay`: from the ledger and from a file, in the shadow and for real; refusals say what to do."""

import json
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncebox import App, Message
from oncebox.schema import migrate
from tests.cli.inside import inside
from tests.cli.kit import Done

SECRET = "canary-in-the-payload"
APP = """\
import os
import signal
import sqlite3
from pathlib import Path

from oncebox import App, Message, Tx

app = App("sqlite:///shop.db")
page = app.consumer("page", keep_payload="always", replay="rebuild", mode="stored")
notices = app.consumer("notices", keep_payload="always", replay="suppress_effects")
plain = app.consumer("plain", replay="rebuild")
shut = app.consumer("shut")
mailer = app.consumer("mailer", mode="stored", replay="rebuild", keep_payload="always")
waits = app.consumer("waits", keep_payload="always", replay="rebuild")


@page.handler()
def project(event: dict, message: Message, conn: sqlite3.Connection) -> None:
    conn.execute("INSERT INTO page VALUES (?, ?)", (message.id, message.replay))
    if message.type == "broken" and message.replay:
        raise ValueError(event)


@notices.handler()
def notify(event: dict, tx: Tx, conn: sqlite3.Connection) -> None:
    tx.send("mailer", "mail", event)


@waits.handler()
async def wait(event: dict, message: Message, conn: sqlite3.Connection) -> None:
    conn.execute("INSERT INTO page VALUES (?, ?)", (message.id, message.replay))
    if message.id == "evt-1" and not Path("asked").exists():
        Path("asked").touch()
        os.kill(os.getpid(), signal.SIGTERM)


@plain.handler()
def nothing(event: dict) -> None:
    pass


@mailer.effect("mail")
def mail(event: dict) -> None:
    raise AssertionError("never in a replay")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app, and a database in which a few messages were handled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return made(tmp_path)


def made(tmp_path: Path) -> Path:
    (tmp_path / "replayed_shop.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    migrate(url)
    ask(tmp_path, "CREATE TABLE page (id TEXT, again INTEGER)")
    app = App(url)
    for name in ("page", "notices", "waits"):
        consumer = app.consumer(name, keep_payload="always")
        consumer.handler()(handle)
        for n in range(3):
            consumer.process_sync(
                Message(id=f"evt-{n}", type="changed", payload={"word": SECRET}, key=f"k{n}")
            )
    app.close()
    return tmp_path


def handle(event: dict[str, str]) -> None:
    """As if there were no page yet."""


def ask(place: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(place / "shop.db", isolation_level=None)) as file:
        return file.execute(sql).fetchall()


def replay(place: Path, *words: str) -> Done:
    sys.modules.pop("replayed_shop", None)
    done = inside("replay", "replayed_shop:app", *words)
    assert SECRET not in done.out + done.err
    return done


def test_shadow_then_for_real(place: Path) -> None:
    seen = replay(place, "page", "--shadow", "--json").json()
    assert (seen["messages"], seen["tables"]) == (3, {"page": {"inserted": 3, "updated": 0, "deleted": 0}})
    assert ask(place, "SELECT count(*) FROM page") == [(0,)]
    told = replay(place, "page", "--shadow")
    assert "3 messages in" in told.out
    assert "all rolled back" in told.out
    done = replay(place, "page", "--reason", "new page", "--by", "ann", "--key", "k1", "--json").json()
    assert (done["handled"], done["ended"]) == (1, "done")
    assert ask(place, "SELECT id, again FROM page") == [("evt-1", 1)]
    assert ask(place, "SELECT who, verb, reason, result FROM oncebox_audit") == [
        ("ann", "replay", "new page", "begun"),
        ("ann", "replay", "new page", "done: 1 handled, 0 skipped, 0 failed, 0 suppressed"),
    ]
    assert "run " in replay(place, "page", "--reason", "again", "--since", "1h").out


def test_what_is_suppressed_is_told(place: Path) -> None:
    done = replay(place, "notices", "--reason", "look", "--json").json()
    assert (done["handled"], done["suppressed"]) == (3, 3)
    assert ask(place, "SELECT count(*) FROM oncebox_queue") == [(0,)]


def test_stopped_by_a_signal_it_goes_on_by_the_same_command(place: Path) -> None:
    stopped = replay(place, "waits", "--reason", "again")
    assert stopped.code == 130
    assert "was stopped; the same command goes on with it" in stopped.out
    assert ask(place, "SELECT id FROM page") == [("evt-0",), ("evt-1",)]
    done = replay(place, "waits", "--reason", "again", "--json").json()
    assert (done["handled"], done["resumed"]) == (3, True)
    assert ask(place, "SELECT id FROM page") == [("evt-0",), ("evt-1",), ("evt-2",)]


def test_a_file(place: Path) -> None:
    lines = [{"id": "evt-0"}, {"id": "new-1", "kind": "changed"}, {"id": "new-2", "kind": "broken"}]
    bodies = [json.dumps(line | {"word": SECRET}) for line in lines]
    (place / "old.ndjson").write_text("\n".join([*bodies, "{no json", ""]))
    words = ("page", "--file", "old.ndjson", "--id-field", "id", "--type-field", "kind", "--reason", "export")
    stopped = replay(place, *words)
    assert stopped.code == 1
    assert "id 'new-2': ValueError in a replay" in stopped.err
    done = replay(place, *words, "--skip-failures", "--json").json()
    # evt-0 is another message under a known id: left alone.
    assert (done["handled"], done["skipped"], done["failed"], done["resumed"]) == (1, 1, 2, True)
    assert ask(place, "SELECT id FROM page") == [("new-1",)]


def test_an_archive_together_with_what_is_still_here(place: Path) -> None:
    pytest.importorskip("pyarrow")
    from oncebox.archive import Archived, keep, open_place

    rows = ask(
        place,
        "SELECT k.seq, k.message_id, l.type, l.fingerprint, k.key, k.payload, k.headers, k.content_type, k.provenance "
        "FROM oncebox_kept k JOIN oncebox_ledger l USING (consumer, source, message_id) WHERE k.consumer = 'page'",
    )
    keep(
        open_place(str(place / "archive")),
        [
            Archived(
                consumer="page", source="", id=row[1], type=row[2], fingerprint=row[3], received=datetime.now(UTC),
                finished=None, state=0, place=row[0], key=row[4], payload=row[5], headers=row[6], content_type=row[7],
                provenance=row[8],
            )
            for row in rows[:2]
        ],
    )  # fmt: skip
    for table in ("kept", "ledger"):
        ask(place, f"DELETE FROM oncebox_{table} WHERE consumer = 'page' AND message_id = 'evt-0'")
    done = replay(
        place, "page", "--archive", str(place / "archive"), "--reason", "all of it", "--json"
    ).json()
    assert (done["handled"], done["origin"]) == (3, "archive")
    assert ask(place, "SELECT id FROM page") == [("evt-0",), ("evt-1",), ("evt-2",)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["nobody", "--reason", "x"],
            "the app has no consumer 'nobody'; it has: mailer, notices, page, plain, shut, waits",
        ),
        (["page"], 'say why: --reason "…"; it is kept in the audit'),
        (["shut", "--reason", "x"], 'consumer \'shut\' has replay="forbid": set replay="rebuild"'),
        (["plain", "--reason", "x"], 'set keep_payload="always"'),
        (["mailer", "--reason", "x"], "calls the outside world (mail)"),
        (["page", "--since", "soon", "--reason", "x"], "--since 'soon': a date, a time, or how long ago"),
        (["page", "--file", "none.ndjson", "--reason", "x"], "none.ndjson can't be read"),
        (
            ["page", "--file", "a", "--archive", "b", "--reason", "x"],
            "--file and --archive: keep one of them",
        ),
        (
            ["page", "--reset", "--archive", "recrods", "--reason", "x"],
            "--archive recrods: nothing of consumer 'page' lies there; see oncebox archive list",
        ),
        (["page", "--id-field", "id", "--reason", "x"], "--id-field and --type-field go with --file"),
    ],
)
def test_refusals(place: Path, words: list[str], told: str) -> None:
    done = replay(place, *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
