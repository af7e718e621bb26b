"""Cases: events in the order of their versions feed a search page and notices, whatever order they come in.

    python examples/cases.py                      a short scene, on a SQLite file of its own
    oncebox run examples.cases:app                the same app as a service, until Ctrl-C

ONCEBOX_DATABASE_URL names a PostgreSQL database, or a SQLite file to keep. Several processes need it:
without it each has a file, and so a ledger, of its own.

The broker shuffles and repeats. Both consumers are ordered by `version`: what comes early waits, what
comes again or late has no second effect, and different cases run beside each other.

The search page is a projection: `project` writes only what is newer than what is there. `rebuild` makes it anew
by a replay of the messages that are kept, after a reset that empties it in the transaction in which the replay
begins; `oncebox replay examples.cases:app search --reset --reason …` does the same. Notices are a consumer of
their own with a ledger of its own, and each is sent on to a mailer in the same transaction. A rebuild of the page
is not among its messages, and mails nobody; and if the notices themselves are replayed, what they send is left out.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from oncebox import App, Message, Tx
from oncebox.brokers.memory import Memory
from oncebox.replay import replay
from oncebox.schema import migrate

URL = os.environ.get("ONCEBOX_DATABASE_URL") or f"sqlite:///{tempfile.mkdtemp()}/cases.db"

# Handlers get their driver's own connection. Your app has one database and needs one of these lines.
if TYPE_CHECKING or URL.startswith("sqlite"):
    from sqlite3 import Connection, connect
else:
    from psycopg import Connection, connect


def sql(text: str) -> str:
    """The two drivers spell placeholders differently; nothing else here does."""
    return text if URL.startswith("sqlite") else text.replace("?", "%s")


STATES = ("opened", "assigned", "answered", "closed")

broker = Memory()
app = App(URL)
search = app.consumer(
    "search", broker.queue("search"), mode="stored", order_by="sequence", key="case", sequence="version",
    sequence_start=1, keep_payload="always", replay="rebuild",
)  # fmt: skip
notices = app.consumer(
    "notices", broker.queue("notices"), mode="stored", order_by="sequence", key="case", sequence="version",
    sequence_start=1, keep_payload="always", replay="suppress_effects",
)  # fmt: skip
mailer = app.consumer("mailer", mode="stored", order_by="key")


class CaseChanged(msgspec.Struct):
    """What happened to a case; its versions count from 1, without gaps."""

    case: str
    version: int
    state: str
    by: str


class Notice(msgspec.Struct):
    """What a customer is told."""

    case: str
    text: str


@search.handler("case.changed")
def index(event: CaseChanged, conn: Connection) -> None:
    """Keep the event, and have the page show it."""
    conn.execute(
        sql("INSERT INTO case_event (case_id, version, state, by_whom) VALUES (?, ?, ?, ?)"),
        (event.case, event.version, event.state, event.by),
    )
    project(conn, event)


def project(conn: Connection, event: CaseChanged) -> None:
    """Write what is newer than what is there; anything else changes nothing."""
    conn.execute(
        sql(
            "INSERT INTO case_page (case_id, version, state, last_by) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (case_id) DO UPDATE SET version = excluded.version, state = excluded.state, "
            "last_by = excluded.last_by WHERE excluded.version > case_page.version"
        ),
        (event.case, event.version, event.state, event.by),
    )


@search.reset
def empty(conn: Connection) -> None:
    """What a rebuild begins with: everything that `index` writes comes again."""
    conn.execute("DELETE FROM case_page")
    conn.execute("DELETE FROM case_event")


def rebuild() -> int:
    """The page anew, from every message that is kept; how many there were."""
    try:
        return replay(search, reason="make the page anew", by="examples/cases.py", reset=True).handled
    finally:
        app.close()


@notices.handler("case.changed")
def notify(event: CaseChanged, tx: Tx) -> None:
    """Tell the customer of the two changes that matter to them."""
    if event.state in ("opened", "closed"):
        tx.send("mailer", "notice", Notice(event.case, f"your case is {event.state}"), key=event.case)


@mailer.handler("notice")
def mail(notice: Notice, conn: Connection) -> None:
    """A row for whoever hands mail to the post; in the order in which a case's notices were written."""
    conn.execute(sql("INSERT INTO mail (case_id, body) VALUES (?, ?)"), (notice.case, notice.text))


def set_up() -> None:
    """The tables. A real service does this in its migrations."""
    migrate(URL)
    number = (
        "integer PRIMARY KEY" if URL.startswith("sqlite") else "bigint GENERATED ALWAYS AS IDENTITY"
    )  # fmt: skip
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        for table in (
            "case_page (case_id text PRIMARY KEY, version integer NOT NULL, state text, last_by text)",
            # No unique keys: what is applied twice, or out of turn, would show here.
            f"case_event (n {number}, case_id text NOT NULL, version integer NOT NULL, state text, by_whom text)",
            f"mail (n {number}, case_id text NOT NULL, body text NOT NULL)",
        ):
            conn.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        conn.commit()


def changes() -> list[Message]:
    """Every change of three cases, shuffled as a broker without order would."""
    made = [
        Message(
            id=f"{case}-{version}",
            source="desk",
            type="case.changed",
            payload=CaseChanged(case, version, state, f"clerk {version}"),
        )
        for case in ("c-1", "c-2", "c-3")
        for version, state in enumerate(STATES, 1)
    ]
    random.Random(4).shuffle(made)
    return made


set_up()
for queue in ("search", "notices"):
    # Where a broker would bring messages, this one has them already: each of them twice.
    broker.put(queue, *changes(), duplicates=1)


def answer(question: str) -> list[tuple[str, ...]]:
    """What the tables say."""
    with closing(connect(URL.removeprefix("sqlite:///"))) as conn:
        return [tuple(row) for row in conn.execute(question).fetchall()]


async def main() -> None:
    """Handle everything, then make the page anew and look who was mailed."""
    async with app.running():
        while len(answer("SELECT n FROM mail")) < 6 or len(answer("SELECT n FROM case_event")) < 12:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    before = answer("SELECT case_id, version, state FROM case_page ORDER BY case_id")
    events = rebuild()
    after = answer("SELECT case_id, version, state FROM case_page ORDER BY case_id")
    for case, version, state in after:
        print(f"{case}: {state} (version {version})")
    print(f"rebuilt from {events} events: {'the same' if before == after else 'another'} page")
    mails = answer("SELECT n FROM mail")
    print(f"mails: {len(mails)}")


if __name__ == "__main__":
    asyncio.run(main())
