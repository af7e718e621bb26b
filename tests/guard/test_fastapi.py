"""The usual session dependency commits after the response: HTTP 200, and nothing in the database."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.orm import Session

from oncebox.inbox import Inbox

with warnings.catch_warnings():
    # Starlette is moving to another HTTP client and says so at import.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

INBOX = Inbox("billing")


@pytest.fixture
def engine(guard_pg_url: str) -> Iterator[Engine]:
    """A database whose commits can fail: a deferred constraint is checked at COMMIT."""
    engine = create_engine(guard_pg_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (id int PRIMARY KEY)"))
        connection.execute(
            text("CREATE TABLE entry (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)")
        )
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE entry, account"))


def app_with(engine: Engine, dependency: Any, *, commit: bool) -> TestClient:
    """A webhook that books an entry for an account that does not exist: its commit will fail."""
    app = FastAPI()

    @app.post("/webhook/{event_id}")
    def webhook(event_id: str, session: Session = dependency) -> dict[str, bool]:
        with INBOX.once(session, event_id) as claim:
            if claim.first:
                session.execute(text("INSERT INTO entry VALUES (7)"))
        if commit:
            session.commit()
        return {"ok": True}

    return TestClient(app, raise_server_exceptions=False)


def claims(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM oncebox.ledger")).scalar_one())


def test_commit_after_the_response_says_200_and_keeps_nothing(engine: Engine) -> None:
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened
            opened.commit()

    response = app_with(engine, Depends(session), commit=False).post("/webhook/evt-1")
    # The hazard itself: the sender will not send again, and nothing is there.
    assert response.status_code == 200
    assert claims(engine) == 0


def test_commit_inside_the_endpoint_tells_the_truth(engine: Engine) -> None:
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened

    client = app_with(engine, Depends(session), commit=True)
    assert client.post("/webhook/evt-1").status_code == 500
    assert claims(engine) == 0
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO account VALUES (7)"))
    assert client.post("/webhook/evt-1").status_code == 200
    assert client.post("/webhook/evt-1").status_code == 200
    assert claims(engine) == 1


def test_function_scope_commits_before_the_response(engine: Engine) -> None:
    def session() -> Iterator[Session]:
        with Session(engine) as opened:
            yield opened
            opened.commit()

    client = app_with(engine, Depends(session, scope="function"), commit=False)
    assert client.post("/webhook/evt-1").status_code == 500
    assert claims(engine) == 0
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO account VALUES (7)"))
    assert client.post("/webhook/evt-1").status_code == 200
    assert claims(engine) == 1
