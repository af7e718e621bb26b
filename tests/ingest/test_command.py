"""`oncebox ingest` as people run it."""

import gzip
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncebox.schema import migrate
from tests.cli.kit import COMMAND, Done, environment, oncebox
from tests.servers.process import kill_tree
from tests.waiting import eventually
from tests.webhooks.kit import cloudevent

SHOP = """\
import os
import sqlite3
import time
from pathlib import Path

from oncebox import App, Message

HERE = Path(__file__).parent
app = App("sqlite:///shop.db")
stored = app.consumer("stored", mode="stored")
inline = app.consumer("inline", timeout_seconds=60)


@stored.handler("paid")
def book(payment: dict) -> None: ...


@inline.handler("paid")
def pay(payment: dict, message: Message, conn: sqlite3.Connection) -> None:
    conn.execute("INSERT INTO effect VALUES (?)", (message.id,))
    while message.id == "evt-150" and not (HERE / "go").exists():
        (HERE / "here").touch()
        time.sleep(0.01)
"""
WORDS = ("--app", "shop:app", "--id-field", "id", "--type", "paid")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    migrate(f"sqlite:///{tmp_path}/shop.db")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE effect (id TEXT)")
    database.close()
    return tmp_path


def payments(*names: Any) -> bytes:
    return b"".join(json.dumps({"id": name}).encode() + b"\n" for name in names)


def ingest(folder: Path, file: str, *words: str, consumer: str = "stored") -> Done:
    return oncebox("ingest", file, "--consumer", consumer, *WORDS, *words, cwd=folder)


def piped(folder: Path, data: bytes, *words: str) -> Done:
    command = [*COMMAND, "ingest", "-", "-c", "stored", *WORDS, *words]
    done = subprocess.run(command, cwd=folder, env=environment(), input=data, capture_output=True, timeout=60)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def rows(folder: Path, query: str) -> list[Any]:
    database = sqlite3.connect(folder / "shop.db")
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def test_without_a_place_for_the_id_the_option_is_named(folder: Path) -> None:
    (folder / "old.ndjson").write_bytes(payments("a"))
    done = oncebox("ingest", "old.ndjson", "-c", "stored", "--app", "shop:app", "--type", "paid", cwd=folder)
    assert "line 1: no id; name where it is with --id-field" in done.err


def test_bad_lines_are_reported_kept_aside_and_can_be_mended(folder: Path) -> None:
    bad = b'{"id": "c", canary\n'
    (folder / "old.ndjson").write_bytes(payments("a") + bad + payments("b") + b'{"no": "id"}\n')
    done = ingest(folder, "old.ndjson")
    assert done.code == 1
    assert "line 2: not JSON" in done.err
    assert "line 4: no id: the field 'id' gave none" in done.err
    assert "canary" not in done.out + done.err
    assert "4 lines in" in done.out
    assert "rejected lines are in old.ndjson.rejected" in done.out
    aside = folder / "old.ndjson.rejected"
    assert aside.read_bytes() == bad + b'{"no": "id"}\n'
    # Mended, the rejected lines are a file like any other.
    aside.write_bytes(payments("c", "d"))
    assert ingest(folder, "old.ndjson.rejected").code == 0
    assert rows(folder, "SELECT message_id FROM oncebox_ledger ORDER BY 1") == [
        ("a",),
        ("b",),
        ("c",),
        ("d",),
    ]


def test_the_document_has_counts_per_outcome_and_running_again_is_all_duplicates(folder: Path) -> None:
    (folder / "old.ndjson").write_bytes(payments(*range(300)))
    first = ingest(folder, "old.ndjson", "--json", consumer="inline").json()
    again = ingest(folder, "old.ndjson", "--json", consumer="inline").json()
    seconds, rate = first.pop("seconds"), first.pop("lines_per_second")
    assert seconds > 0
    assert rate > 0
    assert first == {
        "file": "old.ndjson",
        "consumer": "inline",
        "mode": "inline",
        "ended": "done",
        "lines": 300,
        "outcomes": {"processed": 300},
        "rejected": 0,
        "rejected_file": None,
        "rejects": [],
        "last_line": 300,
        "next": "",
    }
    assert again["outcomes"] == {"duplicate": 300}
    assert rows(folder, "SELECT count(*), count(DISTINCT id) FROM effect") == [(300, 300)]


def test_standard_input_gzip_and_arrays_of_cloudevents(folder: Path) -> None:
    assert piped(folder, gzip.compress(payments("a", "b")), "--json").json()["outcomes"] == {"stored": 2}
    assert piped(folder, payments("b", "c"), "--json").json()["outcomes"] == {"waiting": 1, "stored": 1}
    rejected = piped(folder, b"not json\n")
    assert (rejected.code, (folder / "stdin.rejected").read_bytes()) == (1, b"not json\n")
    (folder / "events.json").write_text(json.dumps([cloudevent("x", type="paid"), 7], indent=2))
    words = ("ingest", "events.json", "-c", "stored", "--app", "shop:app", "--json")
    done = oncebox(*words, cwd=folder)
    document = json.loads(done.out)
    assert (done.code, document["outcomes"]) == (1, {"stored": 1})
    assert [entry["line"] for entry in document["rejects"]] == [2]
    assert rows(folder, "SELECT source FROM oncebox_ledger WHERE message_id = 'x'") == [("/shop",)]


def test_a_dry_run_checks_every_line_and_writes_nothing(folder: Path) -> None:
    (folder / "old.ndjson").write_bytes(payments("a") + b"x\n")
    done = ingest(folder, "old.ndjson", "--dry-run")
    assert (done.code, "would be taken" in done.out, "line 2: not JSON" in done.err) == (1, True, True)
    assert not (folder / "old.ndjson.rejected").exists()
    assert rows(folder, "SELECT count(*) FROM oncebox_ledger") == [(0,)]


def test_a_damaged_file_is_read_up_to_the_damage(folder: Path) -> None:
    (folder / "old.gz").write_bytes(gzip.compress(payments(*range(5000)))[:-500])
    done = ingest(folder, "old.gz")
    assert done.code == 1
    assert "oncebox: the file is damaged after line " in done.err
    assert "run it again, or with --from-line" in done.err
    ((count,),) = rows(folder, "SELECT count(*) FROM oncebox_queue")
    assert 1000 < count < 5000


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_in_the_middle_the_next_run_does_the_rest(
    folder: Path, how: signal.Signals
) -> None:
    names = [f"evt-{n}" for n in range(300)]
    (folder / "old.ndjson").write_bytes(payments(*names))
    command = [*COMMAND, "ingest", "old.ndjson", "-c", "inline", *WORDS, "--json"]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=out)
    try:
        eventually((folder / "here").exists, 50)
        process.send_signal(how)
        if how is signal.SIGINT:
            (folder / "go").touch()
            assert process.wait(50) == 130
            document = json.loads((folder / "out").read_text())
            assert (document["ended"], document["last_line"]) == ("interrupted", document["lines"])
            assert 151 <= document["lines"] < 300
        else:
            process.wait(50)
            (folder / "go").touch()
    finally:
        kill_tree(process)
    done = ingest(folder, "old.ndjson", "--json", consumer="inline").json()
    assert done["outcomes"]["duplicate"] >= 150
    assert sum(done["outcomes"].values()) == 300
    assert rows(folder, "SELECT count(*), count(DISTINCT id) FROM effect") == [(300, 300)]


def test_killed_in_a_batch_of_lines_the_next_run_does_all_of_it(folder: Path) -> None:
    names = [f"evt-{n}" for n in range(300)]
    (folder / "old.ndjson").write_bytes(payments(*names))
    command = [*COMMAND, "ingest", "old.ndjson", "-c", "inline", *WORDS, "--batch", "100"]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    try:
        eventually((folder / "here").exists, 50)
    finally:
        kill_tree(process)
    (folder / "go").touch()
    done = ingest(folder, "old.ndjson", "--json", "--batch", "100", consumer="inline").json()
    assert 0 < done["outcomes"]["duplicate"] < 150, "those before it in its batch went with it"
    assert sum(done["outcomes"].values()) == 300
    assert rows(folder, "SELECT count(*), count(DISTINCT id) FROM effect") == [(300, 300)]
    assert "--batch is for inline consumers" in ingest(folder, "old.ndjson", "--batch", "100").err


def test_ctrl_c_ends_a_pipe_that_gives_nothing_more_and_takes_what_it_gave(folder: Path) -> None:
    command = [*COMMAND, "ingest", "-", "-c", "stored", *WORDS, "--json"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        process.stdin.write(payments(*range(1001)))
        process.stdin.flush()
        eventually(lambda: rows(folder, "SELECT count(*) FROM oncebox_queue") == [(1000,)], 50)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=50)
    finally:
        kill_tree(process)
    document = json.loads(out)
    assert (process.returncode, document["ended"]) == (130, "interrupted")
    assert document["last_line"] in (1000, 1001), "the signal may come before the last one is read"
    assert rows(folder, "SELECT count(*) FROM oncebox_queue") == [(document["last_line"],)]


def test_from_line_leaves_out_what_comes_before_and_keeps_what_was_aside(folder: Path) -> None:
    (folder / "old.ndjson").write_bytes(b"bad 1\n" + payments("a") + b"bad 3\n" + payments("b"))
    (folder / "old.ndjson.rejected").write_bytes(b"bad 1\n")
    done = ingest(folder, "old.ndjson", "--from-line", "3", "--json")
    document = json.loads(done.out)
    assert (document["lines"], document["outcomes"]) == (2, {"stored": 1})
    assert (folder / "old.ndjson.rejected").read_bytes() == b"bad 1\nbad 3\n"


MISTAKES = [
    (("old.ndjson", "-c", "stored"), "no app named"),
    (("old.ndjson", "-c", "other", *WORDS), "no consumer 'other'; it has: inline, stored"),
    (("none.ndjson", "-c", "stored", *WORDS), "none.ndjson can't be read: No such file"),
    ((".", "-c", "stored", *WORDS), ". can't be read: Is a directory"),
    (("old.ndjson", "-c", "stored", *WORDS, "--type-field", "kind"), "keep one of them"),
    (("old.ndjson", "-c", "stored", *WORDS[:4], "--type", "piad"), "no handler for type 'piad'"),
    (("old.ndjson", "-c", "stored", *WORDS, "--rejected", "old.ndjson"), "that is the file to read"),
    (("old.ndjson", "-c", "stored", *WORDS[:2], "--id-field", "a..b"), "name the members"),
]
# One process for all of them: starting one takes longer than what it does.
EACH = """\
import json, sys
from oncebox.cli.commands import run_command

for words in json.loads(sys.argv[1]):
    sys.argv = ["oncebox", "ingest", *words]
    print(run_command(), file=sys.stderr)
"""


def test_mistakes_are_one_line_and_exit_code_2(folder: Path) -> None:
    (folder / "old.ndjson").write_bytes(payments("a"))
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps([words for words, _ in MISTAKES])],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stderr.splitlines()
    assert (done.stdout, len(lines)) == ("", 2 * len(MISTAKES)), done.stderr
    for (words, told), said, code in zip(MISTAKES, lines[::2], lines[1::2], strict=True):
        assert told in said, words
        assert code == "2", words
    assert (folder / "old.ndjson").read_bytes() == payments("a")
    assert rows(folder, "SELECT count(*) FROM oncebox_ledger") == [(0,)]
