"""`oncebox doctor`: what is wrong, why it matters, and what to do."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.cli.text import one_line, seconds_of
from oncebox.doctor import Finding, Report, Severity, examine
from oncebox.errors import UsageError

EXIT_CODES = {None: 0, Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
_STYLES = {Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def doctor_command(
    reference: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app is `app` in shop.py."),
    ] = None,
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="TIME", help="What stands still for less is not told: 90s, 5m."),
    ] = "5m",
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Look for what is wrong, or will be: database, brokers, policies, backlog, and what stands still.

    Each finding has a code, and says what, why it matters and what to do. Nothing is changed, and no source is
    subscribed to. With --database instead of an app, only the database is looked at.

    Exit code 0 without warnings and errors, 1 with warnings, 2 with errors.

    [bold]Examples[/]

      oncebox doctor shop:app
      oncebox doctor --database @/run/secrets/database-url --patience 1h
      oncebox doctor shop:app --json | jq '.findings[] | select(.severity == "error") | .code'
    """
    if reference is not None and database is not None:
        raise UsageError("name the app or --database, not both: an app has a database of its own")
    seconds = seconds_of(patience, "--patience") or 0.0
    target = find_target(database, reference or app, schema)
    target.must_exist()
    report = asyncio.run(examine(target.database, target.app, patience_seconds=seconds))
    if as_json:
        print_json(document(target, report))
    else:
        console().print(view(target, report))
    raise typer.Exit(EXIT_CODES[report.worst])


def document(target: Target, report: Report) -> dict[str, object]:
    """The report as JSON says it."""
    worst = report.worst
    found = [
        {
            **msgspec.to_builtins(each),
            "subject": one_line(each.subject),
            "what": one_line(target.exact(each.what)),
        }
        for each in report.findings
    ]
    return {"database": target.database.place, "checked": report.checked, "worst": worst, "findings": found}


def view(target: Target, report: Report) -> RenderableType:
    """The report as text."""
    parts: list[RenderableType] = [Text.assemble(("database ", "dim"), plain(target.database.place))]
    parts += [_finding(each, target.exact(each.what)) for each in report.findings]
    looked = ", ".join(report.checked)
    if not report.findings:
        parts.append(Text(f"\nNothing found. Looked at: {looked}.", "green"))
        return Group(*parts)
    counts = [(each, sum(f.severity is each for f in report.findings)) for each in reversed(Severity)]
    said = ", ".join(f"{n} {each}{'' if n == 1 else 's'}" for each, n in counts if n)
    parts.append(Text(f"\n{said}. Looked at: {looked}."))
    return Group(*parts)


def _finding(each: Finding, what: str) -> RenderableType:
    head = Text.assemble(
        (f"{each.severity} ", _STYLES[each.severity]),
        (each.code, "bold"),
        "  ",
        plain(one_line(each.subject)),
    )
    # Lines of their own: padding would fill each up to the width of the terminal.
    return Group(
        Text(""),
        head,
        plain(f"  {one_line(what)}"),
        Text(f"  Why: {each.why}", "dim"),
        Text(f"  Do: {each.do}"),
    )
