"""How a session knows, without asking, that the open transaction is still the one that it opened."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from oncebox import errors
from oncebox.core.steps import Begin, Commit
from oncebox.drivers.database import Database
from oncebox.drivers.session import PostgresSession, Settings
from oncebox.schema import migrate

KINDS = ("psycopg", "async psycopg", "asyncpg")


async def done(reply: Any) -> Any:
    return await reply if inspect.isawaitable(reply) else reply


class Watched:
    """A session, and what it was made to send."""

    def __init__(self, session: PostgresSession) -> None:
        self.session = session
        self.sent: list[str] = []
        script = session._script

        def noted(text: str, **words: Any) -> Any:
            self.sent.append(text)
            return script(text, **words)

        session._script = noted  # type: ignore[method-assign]

    async def begin(self, token: str = "t.1") -> None:
        await done(self.session.begin(Begin(token)))

    async def commit(self, token: str = "t.1") -> str:
        """What the closing message was."""
        await done(self.session.commit(Commit(token)))
        return self.sent[-1]

    async def run(self, statement: str) -> None:
        """As a handler would."""
        await done(self.session.raw.execute(statement))


@asynccontextmanager
async def opened(kind: str, url: str, asked: str = "") -> AsyncIterator[Watched]:
    scheme = "postgresql+asyncpg" if kind == "asyncpg" else "postgresql"
    database = Database(f"{scheme}://{url.split('://', 1)[1]}{asked}")
    session = database.connect(Settings()) if kind == "psycopg" else await database.connect_async(Settings())
    try:
        yield Watched(session)  # type: ignore[arg-type]
    finally:
        await done(session.close())


@pytest.fixture
def url(pg_url: str) -> str:
    migrate(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE note (word text)")
    return pg_url


def notes(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT word FROM note")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transaction_that_was_left_alone_is_known_without_asking(url: str, kind: str) -> None:
    async with opened(kind, url) as watched:
        for _ in range(2):
            assert not watched.session.is_marked()
            await watched.begin()
            await watched.run("SAVEPOINT own")
            await watched.run("INSERT INTO note VALUES ('undone')")
            await watched.run("ROLLBACK TO SAVEPOINT own")
            await watched.run("INSERT INTO note VALUES ('kept')")
            assert watched.session.is_marked()
            closing = await watched.commit()
            assert "current_setting" not in closing
    assert notes(url) == ["kept", "kept"]


ENDS = ["ROLLBACK; BEGIN", "ROLLBACK AND CHAIN", "ROLLBACK; BEGIN READ WRITE; SAVEPOINT own"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ENDS)
async def test_one_that_a_handler_opened_instead_is_not_committed(url: str, kind: str, how: str) -> None:
    async with opened(kind, url) as watched:
        await watched.begin()
        await watched.run(how)
        await watched.run("INSERT INTO note VALUES ('stray')")
        with pytest.raises(errors.TransactionEnded):
            await watched.commit()
        assert "current_setting" in watched.sent[-1], "in doubt, the server is asked"
        await watched.run("ROLLBACK")
    assert notes(url) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_who_does_not_look_at_the_mark_commits_what_is_not_theirs(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the mark is for: the test above can fail."""
    async with opened(kind, url) as watched:
        monkeypatch.setattr(watched.session, "is_marked", lambda: True)
        await done(watched.session._script("BEGIN; SET LOCAL oncebox.claim = 't.1'"))
        await watched.run("ROLLBACK; BEGIN")
        await watched.run("INSERT INTO note VALUES ('stray')")
        await watched.commit()
    assert notes(url) == ["stray"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_that_was_swallowed_is_told_from_an_end(url: str, kind: str) -> None:
    async with opened(kind, url) as watched:
        await watched.begin()
        with pytest.raises(Exception, match="division by zero"):
            await watched.run("SELECT 1/0")
        with pytest.raises(errors.TransactionAborted):
            await watched.commit()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_whose_own_the_mark_became_is_asked_from_then_on(url: str, kind: str) -> None:
    async with opened(kind, url) as watched:
        await watched.run("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        await done(watched.session.begin(Begin("t.1")))
        await watched.run("ROLLBACK")
        await watched.run("BEGIN READ WRITE")
        assert watched.session.is_marked()
        with pytest.raises(errors.TransactionEnded):
            await watched.commit()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_behind_a_pooler_asks_always(url: str, kind: str) -> None:
    async with opened(kind, url, "?pooler=transaction") as watched:
        await watched.begin()
        closing = await watched.commit()
        assert "current_setting" in closing
