"""`oncebox partition`: a consumer's ledger rows in partitions by day, for ids that carry their time."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from oncebox.cli.asking import ask
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.cli.text import many
from oncebox.core.leaves import Tree, read_tree
from oncebox.core.partitions import count_rows, split, undo
from oncebox.errors import UsageError


class Ids(StrEnum):
    """How a consumer's ids begin."""

    UUID7 = "uuid7"
    ULID = "ulid"
    DATE = "date"


class Partitioned(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that has partitions."""

    consumer: str
    ids: str
    partitions: list[str]
    """By day, the oldest first; the last is the rest, for all that has no day's partition."""
    first_day: str | None
    last_day: str | None


def partition_command(
    consumer: Annotated[
        str | None,
        typer.Argument(metavar="[CONSUMER]", help="Whose rows; without it, list who has partitions."),
    ] = None,
    ids: Annotated[
        Ids | None, typer.Option("--ids", help="How the ids of its messages begin: that is their day.")
    ] = None,
    back: Annotated[bool, typer.Option("--undo", help="Put all of them back into one table.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it, instead of saying what it would do.")
    ] = False,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Keep a consumer's ledger rows in partitions by day, so that retention drops a day at once. PostgreSQL only.

    For ids that carry their time: a UUIDv7 or a ULID, or ids that begin with their day (2026-11-16…). Messages wait
    while what the consumer has in the ledger is moved: seconds for a million rows. oncebox run makes the days to come.

    [bold]Examples[/]

      oncebox partition --app shop:app
      oncebox partition billing --ids uuid7 --app shop:app --apply
      oncebox partition billing --undo --app shop:app --apply
    """
    target = find_target(database, app, schema)
    queries = target.database.queries
    if consumer is None:
        if ids is not None or back or apply:
            raise UsageError("name the consumer: oncebox partition CONSUMER --ids uuid7")
        return _tell(ask(target, read_tree(queries, 0)), as_json)
    if (ids is None) is not back:
        raise UsageError("say what the ids are like (--ids uuid7, ulid or date), or --undo; one of them")
    if not apply:
        rows = ask(target, count_rows(queries, consumer))
        return _say(consumer, rows, applied=False, as_json=as_json, back=back)
    op: Any = undo(queries, consumer) if ids is None else split(queries, consumer, ids)
    return _say(consumer, ask(target, op), applied=True, as_json=as_json, back=back)


def _say(consumer: str, rows: int, *, applied: bool, as_json: bool, back: bool) -> None:
    if as_json:
        return print_json({"consumer": consumer, "applied": applied, "rows": rows})
    where = "one table" if back else "partitions"
    text = f"{many(rows, 'row')} {'moved' if applied else 'would move'} to {where}"
    return console().print(plain(text if applied else f"{text}; --apply does it", "bold"))


def _tell(tree: Tree, as_json: bool) -> None:
    found = [
        Partitioned(
            consumer=each.consumer,
            ids=each.ids,
            partitions=[leaf.name for leaf in sorted(each.leaves, key=lambda leaf: (leaf.day is None, leaf.day))],
            first_day=each.days[0].isoformat() if each.days else None,
            last_day=each.days[-1].isoformat() if each.days else None,
        )
        for each in tree.splits
    ]  # fmt: skip
    if as_json:
        return print_json({"partitioned": found})
    if not found:
        return console().print(plain("No consumer has partitions.", "dim"))
    table = Table(title="ledgers in partitions", title_justify="left", title_style="bold")
    for name in ("consumer", "ids", "partitions", "from", "to"):
        table.add_column(name)
    for each in found:
        days = (each.first_day or "-", each.last_day or "-")
        table.add_row(plain(each.consumer, "bold"), each.ids, str(len(each.partitions)), *days)
    return console().print(table)
