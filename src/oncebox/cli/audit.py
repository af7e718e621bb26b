"""`oncebox audit`: what was done by hand, by whom, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from oncebox.cli.asking import ask
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.cli.tables import Rows
from oncebox.cli.text import moment, seconds_of
from oncebox.core.audit import Deed, Search, audited
from oncebox.message import check_id

LIMIT = 100


def audit_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Of these messages only.", show_default=False),
    ] = None,
    act: Annotated[
        str | None, typer.Option("--act", help="Of this act only, as a command printed it.")
    ] = None,
    verb: Annotated[
        str | None,
        typer.Option(
            "--verb", metavar="COMMAND", help='Of this command only: dead, "dead redrive", effects, …'
        ),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Done by this person only.")] = None,
    consumer: Annotated[
        str | None, typer.Option("--consumer", "-c", help="Of this consumer's messages only.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Of this source's messages only.")] = None,
    older: Annotated[
        str | None,
        typer.Option("--older", metavar="TIME", help="Done longer ago than this: 90s, 15m, 6h, 2d."),
    ] = None,
    newer: Annotated[
        str | None, typer.Option("--newer", metavar="TIME", help="Done less long ago than this.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many rows.")] = LIMIT,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List what people have done to messages by hand: who, when, why, and what came of it.

    The latest first. A command that changed many messages is one act, with a row for each of them.

    [bold]Examples[/]

      oncebox audit --app shop:app --newer 2d
      oncebox audit evt-42 --app shop:app
      oncebox audit --verb dead --by alice@ops-1 --json | jq '.deeds[] | [.at, .verb, .id, .result]'
    """
    for each in ids or ():
        check_id(each)
    search = Search(
        ids=tuple(ids or ()), act=act, who=by, verb=verb, consumer=consumer, source=source,
        older_seconds=seconds_of(older, "--older"), newer_seconds=seconds_of(newer, "--newer"),
    )  # fmt: skip
    target = find_target(database, app, schema)
    found: list[Deed] = ask(target, audited(target.database.queries, search, limit))
    if as_json:
        print_json({"deeds": found})
    elif not found:
        nothing = (
            "Nothing was done by hand." if search == Search() else "Nothing that was done by hand matches."
        )
        console().print(plain(nothing, "dim"))
    else:
        console().print(_table(found))
        if len(found) == limit:
            console().print(plain(f"The latest {limit:,}; --limit shows more.", "dim"))


def _table(found: list[Deed]) -> Rows:
    columns = ("at", "who", "command", "why", "consumer", "source", "id", "result")
    table = Rows("done by hand, the latest first", columns)
    for each in found:
        table.add(
            moment(each.at), plain(each.who), plain(each.verb), plain(each.reason), plain(each.consumer),
            plain(each.source), plain(each.id, "bold"), plain(each.result),
        )  # fmt: skip
    return table
