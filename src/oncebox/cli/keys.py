"""`oncebox keys`: ordered keys that stand still, and what a person decides about them."""

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
from oncebox.core.keys import StuckKey, reset, skip_gap, stuck_keys, unblock
from oncebox.errors import UsageError

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
ConsumerOption = Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")]
OneConsumerOption = Annotated[str, typer.Option("--consumer", "-c", help="The key's consumer.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")]


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a key."""

    act: str
    consumer: str
    key: str
    done: str


def list_command(
    consumer: ConsumerOption = None,
    key: Annotated[str | None, typer.Option("--key", help="This key only.")] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List keys whose messages do not run, the longest first.

    [bold]Why a key stands still[/]

      blocked  its head is dead: redrive it, or let the key go on without it (keys unblock)
      gap      a version is missing: have it sent, or go on without it (keys skip)

    [bold]Examples[/]

      oncebox keys list --app shop:app
      oncebox keys list --consumer cases --json
    """
    target = find_target(database, app, schema)
    found = ask(target, stuck_keys(target.database.queries, consumer, key))
    if as_json:
        print_json({"keys": found})
    elif not found:
        console().print(plain("No key stands still.", "dim"))
    else:
        console().print(stuck_table(found))


def unblock_command(
    key: KeyArgument,
    consumer: OneConsumerOption,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let a key go on without its dead head, which stays among the dead.

    [bold]Examples[/]

      oncebox keys unblock order-7 --consumer billing --reason "booked by hand" --app shop:app
    """
    _change("unblock", key, consumer, reason, by, (database, app, schema), as_json)


def skip_command(
    key: KeyArgument,
    consumer: OneConsumerOption,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let a key go on without the versions it waits for. If they come after all, they are stale.

    [bold]Examples[/]

      oncebox keys skip case-9 --consumer cases --reason "version 4 was never sent" --app shop:app
    """
    _change("skip", key, consumer, reason, by, (database, app, schema), as_json)


def reset_command(
    key: KeyArgument,
    consumer: OneConsumerOption,
    last: Annotated[
        int | None,
        typer.Option("--last", help="The last version that counts as handled.", show_default=False),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Forget it: start with the first that waits, or as policy says.")
    ] = False,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say where a key ordered by sequence stands: after a producer started to count again, for example.

    What waits with a version up to --last becomes stale; the next one runs.

    [bold]Examples[/]

      oncebox keys reset case-9 --consumer cases --last 0 --reason "the producer was restored" --app shop:app
      oncebox keys reset case-9 --consumer cases --learn --reason "versions start anew" --app shop:app
    """
    if (last is None) != learn:
        raise UsageError("say where the key stands: --last VERSION, or --learn")
    _change("reset", key, consumer, reason, by, (database, app, schema), as_json, last)


def _change(
    verb: str,
    key: str,
    consumer: str,
    reason: str,
    by: str | None,
    where: tuple[str | None, str | None, str | None],
    as_json: bool,
    last: int | None = None,
) -> None:
    if not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    target = find_target(*where)
    queries = target.database.queries
    chosen: dict[str, object] = {"consumer": consumer, "key": key, "last": last}
    act = Act(verb=f"keys {verb}", who=who(by), reason=reason.strip(), filter=chosen)
    flows = {"unblock": unblock, "skip": skip_gap}
    op = (
        reset(queries, consumer, key, last, act)
        if verb == "reset"
        else flows[verb](queries, consumer, key, act)
    )
    ask(target, op)
    done = {"unblock": "goes on without its dead head", "skip": "goes on without what was missing"}.get(
        verb, f"goes on after version {last}" if last is not None else "starts anew"
    )
    if as_json:
        print_json(Changed(act=act.id, consumer=consumer, key=key, done=done))
    else:
        console().print(plain(f"{consumer}: {key} {done}"))


def stuck_table(found: list[StuckKey]) -> Table:
    """Keys as a table."""
    table = Table(title="keys that stand still", title_justify="left", title_style="bold")
    for name in ("consumer", "key", "why"):
        table.add_column(name, no_wrap=name == "key")
    table.add_column("for", justify="right")
    table.add_column("waiting", justify="right")
    table.add_column("head or missing versions")
    for each in found:
        table.add_row(
            plain(each.consumer), plain(each.key, "bold"), plain(each.why), age(each.age_seconds),
            count(each.waiting), plain(each.head if each.why == "blocked" else each.missing),
        )  # fmt: skip
    return table
