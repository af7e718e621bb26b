"""From what a person typed to an app and a database, or one line that says what is wrong with it."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncebox.app import DATABASE_VARIABLE, App
from oncebox.config import load
from oncebox.drivers.database import Database
from oncebox.errors import ConfigError, DatabaseUnavailable, OnceboxError, SchemaError, SchemaMissing

APP_VARIABLE = "ONCEBOX_APP"
_MIGRATE = "run: oncebox migrate"


class Target:
    """The database a command works on, where its name came from, and the app if that named it."""

    def __init__(self, database: Database, origin: str, app: App | None = None, *, words: str = "") -> None:
        self.database = database
        self.origin = origin
        self.app = app
        self.words = words
        """Options that name the same database to another command; no password."""

    @property
    def consumers(self) -> list[str]:
        """Names to list even when the database has not heard of them."""
        return sorted(self.app.consumers) if self.app is not None else []

    @property
    def handled(self) -> dict[str, list[str] | None] | None:
        """By consumer, the types that the app's handlers name; None without an app."""
        return self.app.handled_types() if self.app is not None else None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Have a failed connection say which database it was, and who named it."""
        try:
            yield
        except DatabaseUnavailable as error:
            error.add_note(f"tried {self.database.place}, named by {self.origin}")
            raise
        except SchemaError as error:
            error.args = (self.exact(str(error)),)
            raise

    def exact(self, text: str) -> str:
        """The text, with the whole command where it says what to run."""
        return text.replace(_MIGRATE, f"{_MIGRATE}{self.words}")

    def must_exist(self) -> None:
        """Opening a SQLite file makes one; whoever only reads must not. SchemaMissing when there is none."""
        path = Path(self.database.place.removeprefix("sqlite:///"))
        if self.database.dialect == "sqlite" and not path.exists():
            raise SchemaMissing(
                f"no SQLite file {str(path)!r}, named by {self.origin}; check the path, or {self.exact(_MIGRATE)}"
            )


def find_target(database: str | None, app: str | None, schema: str | None = None) -> Target:
    """`--database`, else the app of `--app` or ONCEBOX_APP, else ONCEBOX_DATABASE_URL; else ConfigError."""
    inside = f" --schema {schema}" if schema is not None else ""
    if database is not None:
        url, origin = _url(database)
        # A URL may hold a password; one that has no user in it, and a file's name, hold none.
        words = f" --database {'…' if '@' in database[1:] or '?' in database else database}{inside}"
        return Target(Database(url, schema=schema or load().schema), origin, words=words)
    if app is not None:
        found = find_app(app)
        if schema is not None and schema != found.database.schema:
            raise ConfigError(
                f"--schema {schema} differs from the app's own, {found.database.schema}; leave it out with --app"
            )
        return app_target(found, app)
    if url := os.environ.get(DATABASE_VARIABLE, ""):
        return Target(Database(url, schema=schema or load().schema), DATABASE_VARIABLE, words=inside)
    raise ConfigError(
        f"no database named; give --database URL (or --database @file), --app module:app, or set {DATABASE_VARIABLE}"
    )


def app_target(app: App, reference: str) -> Target:
    """The database of an app that was named."""
    return Target(app.database, f"the app {reference}", app, words=f" --app {reference}")


def _url(given: str) -> tuple[str, str]:
    """The URL and who named it. A file keeps passwords out of the process list and the shell's history."""
    if not given.startswith("@"):
        return given, "--database"
    file = Path(given[1:])
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--database {given}: the file can't be read ({reason})") from None
    if len(lines) != 1:
        raise ConfigError(f"--database {given}: the file should hold one database URL and nothing else")
    return lines[0], f"--database {given}"


def find_app(reference: str) -> App:
    """The App that `module:name` names, with the current folder importable; ConfigError says what is wrong."""
    module_name, colon, path = reference.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(
            f"{reference!r} names no app: write module:name, as in shop:app for `app` in shop.py"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found = _import(module_name)
    for step in path.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise ConfigError(
                f"{reference}: {module_name!r} has no {path!r}{_instead(module_name)}"
            ) from None
    if not isinstance(found, App):
        kind = type(found).__name__
        raise ConfigError(f"{reference} is of type {kind}, not an oncebox App{_instead(module_name)}")
    return found


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except OnceboxError as error:
        error.add_note(f"raised while importing {name}{_place(error)}")
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            if name.endswith(".py"):
                raise ConfigError(
                    f"{name!r} is a file; a module goes without .py, with dots for folders: "
                    f"{name.removesuffix('.py').replace('/', '.')}:app"
                ) from error
            raise ConfigError(
                f"no module {error.name!r} here or on the Python path; run this where {error.name}.py is, "
                "or set PYTHONPATH"
            ) from error
        raise ConfigError(
            f"importing {name} failed: {error}{_place(error)}; install it, or fix the import"
        ) from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigError(
            f"importing {name} failed: {what}{_place(error)}; --debug shows the traceback"
        ) from error


def _place(error: BaseException) -> str:
    """` (shop.py:3)`: the innermost line of code that is neither installed nor the import system's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}:{error.lineno})"
    ours = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        if not frame.filename.startswith((ours, "<")) and not {"site-packages", "importlib"} & set(parts):
            return f" ({parts[-1]}:{frame.lineno})"
    return ""


def _instead(module_name: str) -> str:
    """`; did you mean …?`, where the module has apps under other names."""
    module = sys.modules.get(module_name)
    names = [name for name, value in vars(module).items() if isinstance(value, App)] if module else []
    return f"; did you mean {module_name}:{min(names)}?" if names else ""
