"""Replays that are killed: a child that ends by SIGKILL before its nth step, and another that goes on.

`python -m tests.operate.replay_dying DATABASE [file]` handles a few messages, then, for every step of a replay with a
reset: has a child die there, looks at what is left, has another go on, and counts. Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from typing import Any

import psycopg

from oncebox import App, Consumer, Message
from oncebox.core.replay import replay
from oncebox.core.run import run
from oncebox.core.steps import Step
from oncebox.replay import order, placed
from oncebox.runtime.performer import Performer
from oncebox.runtime.schema import migrate
from tests.operate.alone import wait_until_alone

MESSAGES = 2
STEPS_MAX = 100


def shop(url: str) -> tuple[App, Consumer]:
    app = App(url)
    page = app.consumer("page", keep_payload="always", replay="rebuild")
    kind: Any = sqlite3.Connection if url.startswith("sqlite") else psycopg.Connection

    def project(message, conn):  # type: ignore[no-untyped-def]
        conn.execute(f"INSERT INTO page VALUES ('{message.id}')")

    def reset(conn):  # type: ignore[no-untyped-def]
        conn.execute("DELETE FROM page")

    project.__annotations__ = {"message": Message, "conn": kind}
    reset.__annotations__ = {"conn": kind}
    page.handler()(project)
    page.reset(reset)
    return app, page


def messages() -> list[Message]:
    return [Message(id=f"m{n}", type="t", payload={}) for n in range(MESSAGES)]


def child(url: str, number: int, of_file: bool) -> bool:
    """A replay that dies before its step `number`; whether it came through."""
    pid = os.fork()
    if pid == 0:
        app, page = shop(url)
        words: dict[str, Any] = {"origin": "file", "given": placed(page, iter(messages()))} if of_file else {}
        asked = order(page, reason="again", reset=True, **words)
        work, seen = page.work(app.worker, 0), 0
        with app.sync_state.sessions(page.policy).lend() as session:
            hands = Performer(work, session, app.sync_state.side, is_async=False)

            def counted(step: Step) -> Any:
                nonlocal seen
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return hands(step)

            run(replay(work, asked), counted)
        os._exit(0)
    ended = os.waitpid(pid, 0)[1]
    if not url.startswith("sqlite"):
        with psycopg.connect(url, autocommit=True) as connection:
            # What its session was asked for last has come to its end, and its locks are gone.
            wait_until_alone(connection)
    return ended == 0


def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None) as file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return list(cursor.fetchall()) if cursor.description else []


def main(url: str, of_file: bool) -> dict[str, Any]:
    app, page = shop(url)
    migrate(app.database)
    dot = "_" if url.startswith("sqlite") else "."
    ask(url, "CREATE TABLE page (id TEXT)")
    for message in messages():
        page.process_sync(message)
    app.close()
    every, found = "SELECT id, count(*) FROM page GROUP BY id ORDER BY id", []
    for number in range(1, STEPS_MAX):
        through = child(url, number, of_file)
        left = ask(url, every)
        while not (done := ask(url, f"SELECT 1 FROM oncebox{dot}replay WHERE ended IS NULL") == []):
            assert child(url, 0, of_file)
        found.append(
            {"step": number, "left": left, "then": ask(url, every), "through": through, "done": done}
        )
        if through:
            break
    runs = ask(url, f"SELECT DISTINCT result, handled FROM oncebox{dot}replay")
    return {"steps": found, "runs": runs}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:] == ["file"])))
