"""Options that several commands share, so that a word means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from oncebox.cli.resolve import APP_VARIABLE

_WHERE = "Which database"
_HOW = "Output"

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL|@FILE",
        help="postgresql://…, postgresql+asyncpg://… or sqlite:///file; @file reads the URL from a file, which "
        "keeps its password out of the process list. Without it: the app's, else ONCEBOX_DATABASE_URL.",
        rich_help_panel=_WHERE,
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        envvar=APP_VARIABLE,
        help="Take the database from this app.",
        rich_help_panel=_WHERE,
    ),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="Schema of the tables (SQLite: their prefix). Default: as oncebox.toml says, else oncebox.",
        rich_help_panel=_WHERE,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.", rich_help_panel=_HOW)
]
DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug",
        envvar="ONCEBOX_DEBUG",
        show_envvar=False,
        help="Show tracebacks of errors (they may quote your data).",
        rich_help_panel=_HOW,
    ),
]
