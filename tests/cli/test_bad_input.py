"""What a person sees who got something wrong: one line that names the next step, and never a password."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from oncebox.schema import latest
from tests.cli.kit import Done, oncebox
from tests.servers import Postgres

CANARY = "canary-Secret-42"


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., Done]:
    """Run a command in this test's folder."""

    def run(*words: str, **env: str) -> Done:
        return oncebox(*words, cwd=tmp_path, env=env)

    return run


def refused(done: Done, message: str, code: int = 2) -> None:
    """The one line, the exit code, and nothing on standard output."""
    assert done.err == f"oncebox: {message}\n"
    assert (done.code, done.out) == (code, "")


def test_unknown_url_scheme(cli: Callable[..., Done]) -> None:
    refused(
        cli("status", "--database", f"mysql://root:{CANARY}@localhost/shop"),
        "unknown database scheme 'mysql'; known: postgresql://, postgresql+asyncpg://, sqlite:///",
    )


def test_something_that_is_no_url(cli: Callable[..., Done]) -> None:
    refused(
        cli("migrate", "--database", CANARY),
        "not a database URL (it has no ://); use postgresql://host/name, postgresql+asyncpg://host/name or "
        "sqlite:///file",
    )


def test_no_database_named(cli: Callable[..., Done]) -> None:
    refused(
        cli("status"),
        "no database named; give --database URL (or --database @file), --app module:app, or set "
        "ONCEBOX_DATABASE_URL",
    )


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{CANARY}#x@localhost/shop",
        f"postgresql://u:{CANARY}/x@localhost/shop",
        f"postgresql://u:x@{CANARY}@localhost/shop",
        f"postgresql://u:[{CANARY}@localhost/shop",
        f"postgresql://u:{CANARY}",
    ],
)
def test_a_password_that_is_not_percent_encoded(cli: Callable[..., Done], url: str) -> None:
    refused(
        cli("status", ONCEBOX_DATABASE_URL=url),
        "the database URL can't be read: in its user name and password, write : / ? # [ ] @ % in "
        "percent-encoding (urllib.parse.quote(text, safe='') does), and its port is a number",
    )


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [("postgresql", "psycopg", "postgres"), ("postgresql+asyncpg", "asyncpg", "asyncpg")],
)
def test_missing_driver(
    cli: Callable[..., Done], tmp_path: Path, scheme: str, module: str, extra: str
) -> None:
    # What an environment without the driver does: no finder knows it.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def __getattr__(self, name): return getattr(self.finder, name)\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        return None if name.partition('.')[0] == {module!r} else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]\n"
    )
    refused(
        cli("status", "--database", f"{scheme}://u:{CANARY}@localhost/shop", PYTHONPATH=str(tmp_path)),
        f"{scheme}:// needs the {module} package: pip install 'oncebox[{extra}]'",
    )


def test_unreachable_database(cli: Callable[..., Done]) -> None:
    port = 1  # nobody's, and nobody's in a moment
    refused(
        cli("status", "--database", f"postgresql://u:{CANARY}@127.0.0.1:{port}/shop"),
        f'the database can\'t be reached: connection failed: connection to server at "127.0.0.1", port {port} '
        f"failed: Connection refused; tried postgresql://127.0.0.1:{port}/shop, named by --database",
        code=1,
    )


def test_unreachable_database_through_asyncpg(cli: Callable[..., Done]) -> None:
    port = 1  # nobody's, and nobody's in a moment
    refused(
        cli("migrate", ONCEBOX_DATABASE_URL=f"postgresql+asyncpg://u:{CANARY}@127.0.0.1:{port}/shop"),
        f"the database can't be reached: [Errno 111] Connect call failed ('127.0.0.1', {port}); "
        f"tried postgresql://127.0.0.1:{port}/shop, named by ONCEBOX_DATABASE_URL",
        code=1,
    )


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_wrong_password(cli: Callable[..., Done], disposable_postgres: Postgres, scheme: str) -> None:
    server = disposable_postgres
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE keeper LOGIN PASSWORD {}").format(sql.Literal("the right " + CANARY))
        )
        row = admin.execute("SHOW hba_file").fetchone()
        assert row is not None
        hba = Path(row[0])
        hba.write_text(f"host all keeper 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
        admin.execute("SELECT pg_reload_conf()")
    place = f"127.0.0.1:{server.port}/postgres"
    for words in (["status"], ["status", "--debug"]):
        done = cli(*words, "--database", f"{scheme}://keeper:{CANARY}@{place}")
        assert done.err.splitlines()[-1] == (
            "oncebox: the database refused the user name or password; check the URL's user, its password and "
            f"pg_hba.conf; tried postgresql://{place}, named by --database"
        )
        assert done.code == 1
        assert CANARY not in done.out + done.err


def test_a_sqlite_file_that_is_not_there_is_not_made(cli: Callable[..., Done], tmp_path: Path) -> None:
    refused(
        cli("status", "--database", "sqlite:///shop.db"),
        "no SQLite file 'shop.db', named by --database; check the path, or run: oncebox migrate "
        "--database sqlite:///shop.db",
    )
    assert not (tmp_path / "shop.db").exists()


def test_a_folder_that_is_missing_is_named(cli: Callable[..., Done]) -> None:
    refused(
        cli("migrate", "--database", "sqlite:///nodir/shop.db"),
        "SQLite can't open its file: there is no folder 'nodir'; tried sqlite:///nodir/shop.db, named by --database",
        code=1,
    )


def test_a_file_that_is_not_sqlite(cli: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("these are not the bytes of a database" * 100)
    done = cli("status", "--database", "sqlite:///shop.db")
    refused(
        done,
        "SQLite can't open its file: file is not a database; tried sqlite:///shop.db, named by --database",
        code=1,
    )


def test_missing_schema(cli: Callable[..., Done], tmp_path: Path, pg_url: str) -> None:
    sqlite3.connect(tmp_path / "shop.db").execute("CREATE TABLE mine (x)").connection.close()
    refused(
        cli("status", "--database", "sqlite:///shop.db"),
        "no oncebox tables in this database; run: oncebox migrate --database sqlite:///shop.db",
    )
    missing = (
        "the oncebox tables are missing from this database or older than this oncebox; run: oncebox migrate"
    )
    (tmp_path / "url").write_text(pg_url)
    (tmp_path / "shop.py").write_text(f"from oncebox import App\napp = App({pg_url!r})\n")
    for words, again in (
        (["status", "--database", pg_url], " --database …"),
        (["show", "evt-1", "--database", "@url"], " --database @url"),
        (["status", "--database", "@url", "--schema", "inbox"], " --database @url --schema inbox"),
        (["status", "--app", "shop:app"], " --app shop:app"),
        (["run", "shop:app"], " --app shop:app"),
    ):
        refused(cli(*words), missing + again)


def _at_version(url: str, version: int) -> None:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("DELETE FROM oncebox_version WHERE version > ?", (version,))
        connection.execute("INSERT INTO oncebox_version VALUES (?, 0)", (version,))
        connection.commit()
        connection.close()
    else:
        with psycopg.connect(url) as session:
            session.execute("DELETE FROM oncebox.version WHERE version > %s", (version,))
            session.execute("INSERT INTO oncebox.version (version) VALUES (%s)", (version,))


def test_old_schema(cli: Callable[..., Done], database_url: str) -> None:
    wanted = latest("sqlite" if database_url.startswith("sqlite") else "postgresql")
    assert cli("migrate", "--database", database_url).code == 0
    _at_version(database_url, 0)
    refused(
        cli("status", "--database", database_url),
        f"the oncebox tables are at version 0, this oncebox needs {wanted}; run: oncebox migrate --database "
        + ("…" if "@" in database_url else database_url),
    )


def test_newer_schema(cli: Callable[..., Done], tmp_path: Path, database_url: str) -> None:
    wanted = latest("sqlite" if database_url.startswith("sqlite") else "postgresql")
    assert cli("migrate", "--database", database_url).code == 0
    _at_version(database_url, 99)
    (tmp_path / "shop.py").write_text(f"from oncebox import App\napp = App({database_url!r})\n")
    message = f"the oncebox tables are at version 99, newer than this oncebox ({wanted}); upgrade oncebox"
    refused(cli("status", "--database", database_url), message)
    refused(cli("run", "shop:app"), message)


@pytest.mark.parametrize("name", ['o"x', "two words", "x" * 70, "Oncebox", "1st", "", "née"])
def test_schema_names_that_sql_would_misread(cli: Callable[..., Done], name: str) -> None:
    refused(
        cli("schema", "print", f"--schema={name}"),
        f"schema={name!r}: use lower-case letters, digits and underscores, starting with a letter or "
        "underscore, at most 41 characters",
    )


def test_schema_versions_that_do_not_exist(cli: Callable[..., Done]) -> None:
    refused(
        cli("schema", "print", "--since", "99"),
        f"--since 99: the newest version of this oncebox is {latest('postgresql')}",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the file can't be read (No such file or directory)"),
        (b"", "the file should hold one database URL and nothing else"),
        (f"sqlite:///a.db {CANARY}".encode(), "the file should hold one database URL and nothing else"),
        (b"\xff\xfe", "the file can't be read (not text)"),
    ],
)
def test_a_database_file_that_is_wrong(
    cli: Callable[..., Done], tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "url").write_bytes(content)
    refused(cli("status", "--database", "@url"), f"--database @url: {message}")


def test_an_id_that_no_message_can_have(cli: Callable[..., Done]) -> None:
    done = cli("show", "x" * 600, "--database", "sqlite:///shop.db")
    assert done.err.startswith("oncebox: ")
    assert "600" in done.err
    assert done.code == 2


def test_debug_shows_the_traceback_without_the_password(cli: Callable[..., Done]) -> None:
    done = cli("status", "--database", f"mysql://root:{CANARY}@localhost/shop", "--debug")
    assert "Traceback (most recent call last):" in done.err
    assert "ConfigError: unknown database scheme" in done.err
    assert CANARY not in done.err
