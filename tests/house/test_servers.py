"""The servers that other tests stand on do what their names say."""

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import psutil
import psycopg
import pytest
from psycopg import sql

from tests.conftest import missing
from tests.servers import PgBouncer, Postgres, Proxy, Unavailable
from tests.servers.process import free_port
from tests.waiting import eventually


def _scalar(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(sql.SQL(query)).fetchone()
    assert row is not None
    return row[0]


def test_each_database_is_fresh_and_ours(postgres: Postgres, pg_url: str) -> None:
    other_url = postgres.create_database()
    with psycopg.connect(pg_url) as one, psycopg.connect(other_url) as other:
        one.execute("CREATE TABLE seen ()")
        assert _scalar(one, "SELECT current_user") == "shop"
        assert _scalar(one, "SHOW fsync") == "off"
        assert _scalar(one, "SHOW listen_addresses") == "127.0.0.1"
        assert _scalar(other, "SELECT to_regclass('seen')") is None
    postgres.drop_database(other_url)


def test_ports_are_not_given_to_anybody_else_while_nobody_listens_there() -> None:
    ports = {str(free_port()) for _ in range(20)}
    assert len(ports) == 20
    code = (
        "import sys; from tests.servers.process import reserve; print(*map(reserve, map(int, sys.argv[1:])))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *ports], env=environment, capture_output=True, text=True, timeout=60
    )
    assert set(done.stdout.split()) == {"False"}, done.stderr


def test_the_server_does_not_run_as_root(postgres: Postgres) -> None:
    assert psutil.Process(postgres.pid).uids().real != 0


def test_a_database_with_connections_left_open_can_be_dropped(postgres: Postgres) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as left_open:
        postgres.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            left_open.execute("SELECT 1")


def test_committed_data_survives_kill9_and_crash(disposable_postgres: Postgres) -> None:
    server = disposable_postgres
    url = server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    for end in (server.kill9, server.crash, server.stop):
        family = psutil.Process(server.pid).children(recursive=True)
        end()
        assert not server.running
        eventually(lambda family=family: not any(_alive(member) for member in family))  # type: ignore[misc]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.restart()
        with psycopg.connect(url) as connection:
            assert _scalar(connection, "SELECT n FROM t") == 1


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_pgbouncer_shares_one_server_connection_between_transactions(
    pgbouncer: PgBouncer, pgbouncer_url: str
) -> None:
    with (
        psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as two,
    ):
        backend = "SELECT pg_backend_pid()"
        assert _scalar(one, backend) == _scalar(two, backend)
    pgbouncer.kill9()
    assert not pgbouncer.running
    pgbouncer.restart()
    with psycopg.connect(pgbouncer_url) as connection:
        assert _scalar(connection, "SELECT 1") == 1


def test_proxy_passes_queries_through(
    postgres: Postgres, pg_url: str, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(postgres.port)
    with psycopg.connect(proxy.through(pg_url)) as connection:
        assert _scalar(connection, "SELECT length(repeat('x', 5000000))") == 5_000_000
        assert proxy.connections == 1
    eventually(lambda: proxy.connections == 0)


def test_proxy_cut_resets_and_lets_reconnect(
    postgres: Postgres, pg_url: str, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(postgres.port)
    with psycopg.connect(proxy.through(pg_url)) as connection:
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with psycopg.connect(proxy.through(pg_url)) as connection:
        assert _scalar(connection, "SELECT 1") == 1
    proxy.cut(refuse=True)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.through(pg_url))
    proxy.pass_through()
    psycopg.connect(proxy.through(pg_url)).close()


def test_proxy_in_silence_holds_data_and_resets_back(proxy_to: Callable[[int], Proxy]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = proxy_to(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            server, _ = listener.accept()
            with server:
                server.settimeout(0.2)
                proxy.go_silent()
                client.sendall(b"held back")
                with pytest.raises(TimeoutError):
                    server.recv(100)
                client.close()
                with pytest.raises(TimeoutError):
                    server.recv(100)
                proxy.resume()
                server.settimeout(30)
                assert server.recv(100) == b"held back"
                assert server.recv(100) == b""


def test_proxy_in_silence_still_accepts(proxy_to: Callable[[int], Proxy], postgres: Postgres) -> None:
    proxy = proxy_to(postgres.port)
    proxy.go_silent()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(proxy.through(postgres.url()), connect_timeout=2)


def test_proxy_cut_ends_silence(proxy_to: Callable[[int], Proxy], postgres: Postgres) -> None:
    proxy = proxy_to(postgres.port)
    with psycopg.connect(proxy.through(postgres.url()), autocommit=True) as connection:
        proxy.go_silent()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    psycopg.connect(proxy.through(postgres.url())).close()


def test_proxy_cut_closes_links_that_have_not_begun(proxy_to: Callable[[int], Proxy]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
        proxy = proxy_to(listener.getsockname()[1])
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", proxy.port)):
                proxy.cut()
        proxy.close()
    gc.collect()  # what was left open would be warned of here


async def test_async_tests_run(sqlite_url: str) -> None:
    assert sqlite_url.startswith("sqlite:////")
    assert os.path.isabs(sqlite_url.removeprefix("sqlite:///"))


def test_eventually_names_what_did_not_happen() -> None:
    def pigs_fly() -> bool:
        return False

    with pytest.raises(AssertionError, match="pigs_fly was not true within 0"):
        eventually(pigs_fly, seconds=0)


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)], ids=["ci", "laptop"]
)
def test_a_missing_server_fails_ci_and_skips_on_a_laptop(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no such server"):
        missing(Unavailable("no such server"))
