"""The guard in a session that a runtime has used before: its trigger refuses a handler's commit, and nobody else's."""

from __future__ import annotations

import psycopg
import pytest

from oncebox import Inbox
from oncebox.schema import migrate

BEFORE = [
    "BEGIN; SET LOCAL oncebox.claim = 'a.1.1'; ROLLBACK",
    "BEGIN; SET LOCAL oncebox.claim = 'a.1.1'; SET LOCAL oncebox.finished = 'a.1.1'; COMMIT",
    "BEGIN; SET LOCAL oncebox.finished = 'a.1.1'; ROLLBACK",
]


@pytest.mark.parametrize("before", BEFORE)
def test_a_guarded_transaction_is_the_users_to_commit(pg_url: str, before: str) -> None:
    migrate(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(before)
        with connection.transaction(), Inbox("billing").once(connection, "evt-1") as claim:
            assert claim.first
        with connection.transaction(), Inbox("billing").once(connection, "evt-1") as claim:
            assert not claim.first


def test_a_handlers_own_commit_is_refused_in_a_session_that_was_used_before(pg_url: str) -> None:
    migrate(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(BEFORE[1])
        connection.execute("BEGIN; SET LOCAL oncebox.claim = 'a.1.2'")
        with Inbox("billing").once(connection, "evt-1") as claim:
            assert claim.first
        with pytest.raises(psycopg.Error, match="a handler must not commit"):
            connection.execute("COMMIT")
        assert connection.execute("SELECT count(*) FROM oncebox.ledger").fetchone() == (0,)
