"""Connections that cells share must be as good as new, or they would break what nobody meant to break."""

from __future__ import annotations

import pytest

from oncebox.drivers.session import Settings
from oncebox.schema import migrate
from tests.crash.faults import sever
from tests.crash.kept import Kept


@pytest.fixture
def kept(database_url: str) -> Kept:
    migrate(database_url)
    return Kept(database_url)


def test_connection_that_is_closed_is_given_out_again_without_its_transaction(kept: Kept) -> None:
    session = kept.connect(Settings())
    session.raw.execute("CREATE TABLE left_behind (id integer)")
    session.execute_text("BEGIN")
    session.raw.execute("INSERT INTO left_behind VALUES (1)")
    session.close()
    again = kept.connect(Settings())
    assert again is session
    assert again.raw.execute("SELECT count(*) FROM left_behind").fetchall() == [(0,)]
    other = kept.connect(Settings())
    assert other is not session, "it has been lent"
    other.close()
    again.close()
    kept.close()


def test_connection_that_was_cut_is_not_kept(pg_url: str) -> None:
    kept = Kept(pg_url)
    session = kept.connect(Settings())
    sever(session)
    session.close()
    again = kept.connect(Settings())
    assert again is not session
    again.close()
    kept.close()


def test_async_connections_outlive_what_ran_with_them(database_url: str) -> None:
    kept = Kept(database_url)
    seen = []

    async def use() -> None:
        session = await kept.connect_async(Settings())
        seen.append(session)
        await session.close()

    kept.run(use())
    kept.run(use())
    kept.close()
    assert seen[0] is seen[1]
