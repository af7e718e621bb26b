"""Fixtures that every test may use: real databases, and servers that may be broken."""

import asyncio
import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.recycled import Recycled
from tests.servers import PgBouncer, Postgres, Proxy, Unavailable
from tests.turns import group_of, in_turn

MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    # Killed processes leave their writes with the operating system; waiting for a disk shows nothing more,
    # and is most of what a database test does.
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the workers take turns well, and `xdist_group` mean something: xdist 3.8 names the group in an
    attribute that pytest 9.2 no longer reads, and every worker would start servers of its own."""
    if not getattr(config.option, "loadgroup", False):
        return
    items[:] = in_turn(items)
    try:
        from _pytest.nodeid import NodeId
    except ImportError:
        return
    for item in items:
        name = group_of(item)
        if name is not None and not item.nodeid.endswith(f"@{name}"):
            item._id = NodeId.parse(f"{item.nodeid}@{name}")


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end: the garbage collector need not look through them
    again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in an event loop of its own. Fixtures stay synchronous."""
    function = pyfuncitem.obj
    # Hypothesis keeps the coroutine function inside, and calls it once per example.
    hypothesis = getattr(function, "hypothesis", None)
    if hypothesis is not None and inspect.iscoroutinefunction(hypothesis.inner_test):
        hypothesis.inner_test = _in_a_loop(hypothesis.inner_test)
        return None
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(function(**arguments))
    return True


def _in_a_loop(coroutine_function: Callable[..., Any]) -> Callable[..., None]:
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(coroutine_function(*args, **kwargs))

    return run


def missing(error: Unavailable) -> NoReturn:
    """A missing server is a skip on a laptop and a failure under CI=true, where it would hide a gap."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server, shared by tests (one per xdist worker): never kill or stop this one."""
    try:
        server = Postgres()
    except Unavailable as error:
        missing(error)
    with server:
        yield server


@pytest.fixture
def disposable_postgres() -> Iterator[Postgres]:
    """A server of this test's own, to kill, crash and restart."""
    try:
        server = Postgres()
    except Unavailable as error:
        missing(error)
    with server:
        yield server


@pytest.fixture
def pg_url(postgres: Postgres) -> Iterator[str]:
    """A fresh, empty PostgreSQL database."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def recycled(postgres: Postgres) -> Iterator[Recycled]:
    """The session's database for `recycled_pg_url`."""
    with Recycled(postgres) as database:
        yield database


@pytest.fixture
def recycled_pg_url(recycled: Recycled) -> str:
    """A PostgreSQL database with oncebox's tables as migrations leave them, and nothing else."""
    recycled.clear()
    return recycled.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Runs the test once per engine, each time on a fresh database."""
    # Asked for by name, so that a SQLite-only run starts no server.
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
    return url


@pytest.fixture
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """A transaction-mode PgBouncer of this test's own, before the session's server."""
    try:
        bouncer = PgBouncer(postgres.port)
    except Unavailable as error:
        missing(error)
    with bouncer:
        yield bouncer


@pytest.fixture
def pgbouncer_url(pgbouncer: PgBouncer, pg_url: str) -> str:
    """This test's `pg_url` database, through PgBouncer."""
    return pgbouncer.url(pg_url.rsplit("/", 1)[1])


@pytest.fixture
def proxy_to() -> Iterator[Callable[[int], Proxy]]:
    """Make breakable TCP proxies to loopback ports: `proxy = proxy_to(postgres.port)`."""
    proxies: list[Proxy] = []

    def make(target_port: int) -> Proxy:
        proxies.append(Proxy(target_port))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
