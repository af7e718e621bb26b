"""`oncebox watermarks`: how far partitions are handled, and having a topic start anew."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from oncebox.cli.asking import ByOption, ask, who
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.cli.text import age, count
from oncebox.core.audit import Act
from oncebox.core.watermark import Watermark, forget, watermarks
from oncebox.errors import UsageError


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions that start anew."""

    act: str
    consumer: str
    topic: str
    partitions: list[int]


def list_command(
    consumer: Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Of this topic only.")] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List how far each partition is handled, where duplicates are told by watermark.

    [bold]Examples[/]

      oncebox watermarks list --app shop:app
      oncebox watermarks list --consumer clicks --topic page.views --json
    """
    target = find_target(database, app, schema)
    found = ask(target, watermarks(target.database.queries, consumer, topic))
    if as_json:
        print_json({"watermarks": found})
    elif not found:
        console().print(plain("No partition has a watermark.", "dim"))
    else:
        console().print(_table(found))


def forget_command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    consumer: Annotated[str, typer.Option("--consumer", "-c", help="The consumer whose watermark it is.")],
    partition: Annotated[
        int | None, typer.Option("--partition", help="This partition only.", show_default=False)
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Have a topic start anew, because it was deleted and made again. What is read next is new.

    In a topic that is still the same one, what its group reads again takes effect again.

    [bold]Examples[/]

      oncebox watermarks forget page.views --consumer clicks --reason "made again with 12 partitions" --app shop:app
    """
    if not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    target = find_target(database, app, schema)
    chosen: dict[str, object] = {"consumer": consumer, "topic": topic, "partition": partition}
    act = Act(verb="watermarks forget", who=who(by), reason=reason.strip(), filter=chosen)
    partitions = ask(target, forget(target.database.queries, consumer, topic, partition, act))
    if as_json:
        print_json(Forgotten(act=act.id, consumer=consumer, topic=topic, partitions=partitions))
    else:
        names = ", ".join(f"{topic}[{number}]" for number in partitions)
        console().print(plain(f"{consumer}: {names} starts anew"))


def _table(found: list[Watermark]) -> Table:
    table = Table(title="watermarks", title_justify="left", title_style="bold")
    for name in ("consumer", "topic"):
        table.add_column(name, no_wrap=name == "topic")
    for name in ("partition", "handled up to", "moved"):
        table.add_column(name, justify="right")
    for each in found:
        table.add_row(
            plain(each.consumer), plain(each.topic, "bold"), count(each.partition), count(each.last),
            f"{age(each.age_seconds)} ago",
        )  # fmt: skip
    return table
