"""A database as a whole: read, and put back exactly as it was."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncebox.drivers.database import Database
from oncebox.testing.tables import Tables, open_tables
from tests.testing.conftest import Sql, make_shop, run_sql

HARD = """
CREATE SCHEMA side;
CREATE TABLE side.parent (id serial PRIMARY KEY, name text, upper text GENERATED ALWAYS AS (upper(name)) STORED);
CREATE TABLE child (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent int NOT NULL REFERENCES side.parent ON DELETE CASCADE, body jsonb, raw bytea, tags text[]);
CREATE TABLE tree (id int PRIMARY KEY, above int REFERENCES tree);
CREATE TABLE "Odd ""name" ("a b" text);
CREATE TABLE log (line text);
CREATE TABLE parted (n int) PARTITION BY RANGE (n);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO log VALUES (''told''); RETURN NULL; END';
INSERT INTO side.parent (name) VALUES ('a'), (E'tab\\tline\\nend\\\\');
INSERT INTO child (parent, body, raw, tags) VALUES (1, '{"b": [1, null]}', '\\x00ff', '{x,"y,z"}'), (2, NULL, '', NULL);
INSERT INTO tree VALUES (1, NULL), (2, 1);
INSERT INTO "Odd ""name" VALUES (NULL), ('x');
INSERT INTO parted VALUES (1);
CREATE TRIGGER noting AFTER INSERT OR DELETE ON child EXECUTE FUNCTION note();
"""
CHANGES = """
DELETE FROM side.parent;
INSERT INTO side.parent (name) VALUES ('other');
UPDATE tree SET above = NULL;
DELETE FROM "Odd ""name" WHERE "a b" IS NULL;
INSERT INTO parted VALUES (2);
CREATE TABLE made_meanwhile (x int);
"""


@pytest.fixture
def hard_url(pg_url: str) -> str:
    make_shop(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as server:
        server.execute(HARD)
    return pg_url


def _dump(url: str) -> list[Any]:
    names = ("side.parent", "child", "tree", '"Odd ""name"', "log", "parted", "account", "oncebox.slot")
    found = [run_sql(url, f"SELECT t::text FROM {name} t ORDER BY 1") for name in names]
    return [*found, run_sql(url, "SELECT last_value, is_called FROM side.parent_id_seq")]


def _put_back(url: str) -> None:
    before = _dump(url)
    with closing(open_tables(Database(url))) as tables:
        tables.save()
        state = tables.read()
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(CHANGES)
        assert tables.read() != state
        assert "made_meanwhile" in tables.read()
        tables.restore()
        assert tables.read() == state
    assert _dump(url) == before
    assert state["side.parent"].columns == ("id", "name")
    assert ("2", "tab\tline\nend\\") in state["side.parent"].rows
    assert state["child"].key == ("id",)


def test_postgresql_is_put_back_with_foreign_keys_triggers_and_sequences(hard_url: str) -> None:
    _put_back(hard_url)


def test_postgresql_is_put_back_by_a_role_that_may_not_switch_foreign_keys_off(hard_url: str) -> None:
    with psycopg.connect(hard_url, autocommit=True) as server:
        server.execute("DROP ROLE IF EXISTS plain")
        server.execute("CREATE ROLE plain LOGIN")
        for (name,) in server.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_'").fetchall():
            if name != "information_schema":
                server.execute(f'ALTER SCHEMA "{name}" OWNER TO plain'.encode())
        server.execute(
            """DO $$ DECLARE t record; BEGIN
               FOR t IN SELECT c.oid::regclass AS name FROM pg_class c
                        JOIN pg_namespace n ON n.oid = relnamespace
                        WHERE relkind IN ('r', 'p') AND nspname IN ('public', 'side', 'oncebox') LOOP
                   EXECUTE format('ALTER TABLE %s OWNER TO plain', t.name);
               END LOOP; END $$"""
        )
        server.execute("ALTER SEQUENCE oncebox.queue_seq OWNER TO plain")
    try:
        _put_back(hard_url.replace("//shop@", "//plain@"))
    finally:
        with psycopg.connect(hard_url, autocommit=True) as server:
            server.execute("REASSIGN OWNED BY plain TO CURRENT_USER")
            server.execute("DROP OWNED BY plain")
            server.execute("DROP ROLE plain")


def test_sequences_jump_when_asked_to(hard_url: str) -> None:
    with closing(open_tables(Database(hard_url))) as tables:
        tables.save()
        tables.restore(shifted=True)
        ((shifted,),) = run_sql(hard_url, "INSERT INTO side.parent (name) VALUES ('x') RETURNING id")
        tables.restore()
        ((again,),) = run_sql(hard_url, "INSERT INTO side.parent (name) VALUES ('x') RETURNING id")
    assert (shifted, again) == (1_000_003 + 3, 3)


@pytest.fixture
def lite_tables(sqlite_url: str) -> Iterator[Tables]:
    make_shop(sqlite_url)
    with closing(open_tables(Database(sqlite_url))) as tables:
        yield tables


def test_sqlite_is_put_back_under_open_connections(sqlite_url: str, lite_tables: Tables) -> None:
    lite_tables.save()
    state = lite_tables.read()
    assert "oncebox.ledger" in state
    assert state["account"].key == ("id",)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as open_before:
        open_before.execute("UPDATE account SET balance = 0")
        open_before.execute("CREATE TABLE made_meanwhile (x)")
        assert lite_tables.read() != state
        lite_tables.restore()
        assert open_before.execute("SELECT balance FROM account").fetchall() == [(1000,)]
        assert open_before.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        open_before.execute("UPDATE account SET balance = 1")
    assert run_sql(sqlite_url, "SELECT balance FROM account") == [(1,)]


def test_waiting_messages_are_made_due(shop_url: str, sql: Sql) -> None:
    name = "oncebox_queue" if shop_url.startswith("sqlite") else "oncebox.queue"
    later = "9e15" if shop_url.startswith("sqlite") else "now() + interval '1 hour'"
    now = "1" if shop_url.startswith("sqlite") else "now()"
    with closing(open_tables(Database(shop_url))) as tables:
        sql(
            f"INSERT INTO {name} (consumer, source, message_id, type, fingerprint, payload, headers, content_type,"
            f" provenance, received, due) VALUES ('c', '', 'a', '', '', '', '', '', '', {now}, {later})"
        )
        assert tables.make_due() is True
        assert tables.make_due() is False
