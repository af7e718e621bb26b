"""`oncebox doctor`: text, JSON and exit codes."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path

import pytest

from oncebox.schema import migrate
from tests.cli.inside import inside
from tests.cli.kit import Done

_SHOP = """\
from oncebox import App
from oncebox.brokers.memory import Memory

app = App({url!r}{more})
billing = app.consumer("billing", Memory().queue("payments"){policy})


@billing.handler("paid")
async def paid(payment: dict) -> None: ...
"""


def doctor(folder: Path, url: str, *words: str, more: str = "", policy: str = "") -> Done:
    # A name of its own each time: a module is imported once in a process.
    name = f"shop_{next(_numbers)}"
    (folder / f"{name}.py").write_text(_SHOP.format(url=url, more=more, policy=policy))
    return inside("doctor", f"{name}:app", *words)


_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ONCEBOX_APP", "ONCEBOX_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url(sqlite_url: str) -> str:
    migrate(sqlite_url)
    return sqlite_url


def test_exit_code_and_json_by_severity(url: str, tmp_path: Path) -> None:
    fine = doctor(tmp_path, url, "--json")
    assert (fine.code, json.loads(fine.out)["findings"]) == (0, [])
    warned = doctor(tmp_path, url, "--json", policy=", observe=True")
    document = json.loads(warned.out)
    assert (warned.code, document["worst"], document["checked"]) == (
        1,
        "warning",
        ["database", "brokers", "policies"],
    )
    [found] = document["findings"]
    assert found.keys() == {"code", "severity", "subject", "what", "why", "do"}
    failed = doctor(tmp_path, url, "--json", more=", lapse_seconds=1", policy=", observe=True")
    codes = [each["code"] for each in json.loads(failed.out)["findings"]]
    assert (failed.code, codes) == (2, ["lapse-short", "observe-on"]), "the worst first"


def test_the_same_as_text(url: str, tmp_path: Path) -> None:
    assert "Nothing found. Looked at: database, brokers, policies." in doctor(tmp_path, url).out
    said = doctor(tmp_path, url, more=", lapse_seconds=1", policy=", observe=True").out
    assert "error lapse-short  app" in said
    assert "Why: " in said
    assert "Do: " in said
    assert "1 error, 1 warning." in said


def test_what_can_not_be_asked(url: str, tmp_path: Path) -> None:
    both = doctor(tmp_path, url, "--database", url)
    assert (both.code, both.out) == (2, "")
    assert "not both" in both.err
    nothing = inside("doctor")
    assert "no database named" in nothing.err
    missing = inside("doctor", "--database", "sqlite:///nowhere.db")
    assert missing.code == 2
    assert not (tmp_path / "nowhere.db").exists()
    sqlite3.connect(tmp_path / "bare.db").execute("CREATE TABLE mine (x)").connection.close()
    bare = inside("doctor", "--database", "sqlite:///bare.db")
    assert (bare.code, "run: oncebox migrate --database sqlite:///bare.db" in bare.out) == (2, True)
    span = doctor(tmp_path, url, "--patience", "soon")
    assert "--patience 'soon'" in span.err


def test_a_type_from_outside_can_not_act_on_the_terminal(url: str, tmp_path: Path) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as lite:
        lite.execute(
            "INSERT INTO oncebox_queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
            "content_type, provenance, received, due) VALUES (1, 'billing', '', 'x', ?, x'', x'', x'', '', '{}', 0, 0)",
            ("\x1b[2Jcanary",),
        )
    for words in ((), ("--json",)):
        said = doctor(tmp_path, url, *words).out
        assert "canary" in said
        assert "\x1b" not in said
