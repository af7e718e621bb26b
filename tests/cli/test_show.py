"""`oncebox show`: every state a message can be in, and payloads only for those who ask."""

import asyncio
import json
import sqlite3
from pathlib import Path

import psycopg
import pytest

from oncebox import App, Backoff, Dead, Discard, FolderStore, Inbox, Message
from oncebox.drivers.database import Database
from oncebox.schema import migrate
from tests.cli.kit import Done, oncebox

SECRET = "canary-in-the-payload"
HOSTILE = "red\x1b[31m\x9b2J\u202ebell\x07\r\nnext"


def show(url: str, folder: Path, *words: str) -> Done:
    return oncebox("show", *words, "--database", url, cwd=folder)


def message(url: str, folder: Path, name: str, *words: str) -> dict[str, object]:
    """The only record of an id."""
    found = show(url, folder, name, "--json", *words).json()
    assert found["id"] == name
    (record,) = found["messages"]
    return dict(record)


async def _handle(app: App) -> None:
    """Messages in every state that needs no worker process."""
    inline = app.consumer("inline", retry=Backoff(attempts=2, base_seconds=0.01))
    stored = app.consumer("stored", mode="stored")

    @inline.handler("good")
    async def good(body: dict[str, str]) -> dict[str, str]:
        return {"kept": HOSTILE}

    @inline.handler("bad")
    async def bad(body: dict[str, str]) -> None:
        raise ValueError("no funds")

    @inline.handler("final")
    async def final(body: dict[str, str]) -> None:
        raise Dead("the account is closed")

    @inline.handler("dropped")
    async def dropped(body: dict[str, str]) -> None:
        raise Discard("a test order")

    @stored.handler("good")
    async def later(body: dict[str, str]) -> None: ...

    def make(name: str, kind: str, **payload: str) -> Message:
        headers = (("trace", SECRET.encode()),)
        return Message(
            id=name, type=kind, source="tests", payload={"text": SECRET, **payload}, headers=headers
        )

    await inline.process(make("done", "good"))
    await inline.process(make("done", "good", other="payload"))
    await inline.process(make("retrying", "bad"))
    await inline.process(make("exhausted", "bad"))
    await inline.process(make("exhausted", "bad"))
    await inline.process(make("terminal", "final", hostile=HOSTILE))
    await inline.process(make("discarded", "dropped"))
    await stored.process(make("waiting", "good"))
    await stored.process(make("done", "good"))
    await app.aclose()


@pytest.fixture
def filled(database_url: str) -> str:
    """A database with messages in it."""
    migrate(database_url)
    asyncio.run(_handle(App(database_url)))
    return database_url


def test_every_state_is_derived(filled: str, tmp_path: Path) -> None:
    states = {}
    for name in ("retrying", "exhausted", "terminal", "discarded", "waiting"):
        record = message(filled, tmp_path, name)
        states[name] = (record["state"], record["reason"], len(record["attempts"]), len(record["dead"]))  # type: ignore[arg-type]
        assert (record["source"], record["id"]) == ("tests", name)
    assert states == {
        "retrying": ("retrying", None, 1, 0),
        "exhausted": ("dead", "exhausted", 2, 1),
        "terminal": ("dead", "terminal", 1, 1),
        "discarded": ("discarded", None, 1, 0),
        "waiting": ("waiting", None, 0, 0),
    }


def test_an_id_of_several_consumers_and_its_conflicts(filled: str, tmp_path: Path) -> None:
    found = show(filled, tmp_path, "done", "--json").json()["messages"]
    assert [(record["consumer"], record["state"]) for record in found] == [
        ("inline", "done"),
        ("stored", "waiting"),
    ]
    assert [grave["reason"] for grave in found[0]["dead"]] == ["conflict"]
    assert found[0]["dead"][0]["fingerprint"] != found[0]["fingerprint"]
    assert message(filled, tmp_path, "done", "--consumer", "stored")["state"] == "waiting"
    text = show(filled, tmp_path, "done", "--consumer", "inline").out
    assert "another payload or type under the same id; the message above stands" in text


def test_errors_and_results_are_shown(filled: str, tmp_path: Path) -> None:
    record = message(filled, tmp_path, "done", "-c", "inline")
    assert record["result"] == {"kept": HOSTILE}
    text = show(filled, tmp_path, "exhausted").out
    assert "state     dead: exhausted" in text
    assert text.count("ValueError: no funds") == 3
    assert 'raise ValueError("no funds")' in text


def test_payloads_and_header_values_only_when_asked_for(filled: str, tmp_path: Path) -> None:
    for name in ("terminal", "waiting", "exhausted"):
        for words in ((), ("--json",)):
            without = show(filled, tmp_path, name, *words)
            assert without.code == 0
            assert SECRET not in without.out + without.err
            assert show(filled, tmp_path, name, "--payload", *words).out.count(SECRET) == 2
    body = message(filled, tmp_path, "waiting", "--payload")["queue"]
    assert isinstance(body, dict)
    assert json.loads(body["payload"]["text"]) == {"text": SECRET}
    assert body["headers"] == [["trace", {"text": SECRET}]]
    assert "not kept once a message is done" in show(filled, tmp_path, "discarded", "--payload").out


def test_nothing_printed_can_act_on_the_terminal(filled: str, tmp_path: Path) -> None:
    for words in (("terminal", "--payload"), ("done", "-c", "inline"), ("done", "--json")):
        out = show(filled, tmp_path, *words).out
        assert not set("\x1b\x9b\u202e\x07\r") & set(out)


def test_a_message_that_nobody_knows(filled: str, tmp_path: Path) -> None:
    unknown = show(filled, tmp_path, "don\x1be")
    place = Database(filled).place
    assert unknown == (
        1,
        "",
        f"oncebox: no message 'don\\x1be' of any consumer in {place}; ids are compared exactly\n",
    )
    other = show(filled, tmp_path, "retrying", "--consumer", "stored")
    assert (other.code, "of consumer 'stored' in" in other.err) == (1, True)


def test_a_claim_that_was_committed_unfinished(database_url: str, tmp_path: Path) -> None:
    migrate(database_url)
    inbox = Inbox("guarded")
    connection = (
        sqlite3.connect(database_url.removeprefix("sqlite:///"))
        if database_url.startswith("sqlite")
        else psycopg.connect(database_url)
    )
    try:
        with inbox.once(connection, "half") as claim:
            assert claim.first
            raise ValueError("after half the work")
    except ValueError:
        connection.commit()
    connection.close()
    record = message(database_url, tmp_path, "half")
    assert (record["consumer"], record["state"], record["reason"]) == ("guarded", "dead", "unfinished")


def test_a_payload_that_the_apps_store_keeps(sqlite_url: str, tmp_path: Path) -> None:
    migrate(sqlite_url)
    code = (
        "from pathlib import Path\nfrom oncebox import App, FolderStore\n"
        f"app = App({sqlite_url!r}, store=FolderStore(Path({str(tmp_path)!r}) / 'large'))\n"
    )
    (tmp_path / "shop.py").write_text(code)

    async def keep() -> None:
        app = App(sqlite_url, store=FolderStore(tmp_path / "large"))
        consumer = app.consumer("stored", mode="stored", claim_check_bytes=10)
        await consumer.process(Message(id="large", type="x", payload=SECRET.encode()))
        await app.aclose()

    asyncio.run(keep())
    assert show(sqlite_url, tmp_path, "large", "--payload").err == (
        "oncebox: the payload is kept in the app's store; name the app with --app to see it\n"
    )
    with_app = oncebox("show", "large", "--payload", "--app", "shop:app", cwd=tmp_path)
    assert SECRET in with_app.out
