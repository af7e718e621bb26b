"""`oncebox effects`: calls to the outside whose end is not known, and what a person decides about them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from oncebox.cli.asking import ByOption, ask, who
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.cli.tables import Rows
from oncebox.cli.text import age
from oncebox.core.settle import OpenEffect, open_effects, settle
from oncebox.errors import UsageError
from oncebox.message import check_id

ConsumerOption = Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")]


def list_command(
    consumer: ConsumerOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List calls to the outside whose end is not known, the oldest first.

    [bold]States[/]

      parked   a person decides: ask the provider, then oncebox effects settle
      started  it is being made right now, or its process died and policy will decide

    [bold]Examples[/]

      oncebox effects list --app shop:app
      oncebox effects list --consumer mailer --json
    """
    target = find_target(database, app, schema)
    found = ask(target, open_effects(target.database.queries, consumer))
    if as_json:
        print_json({"effects": found})
    elif not found:
        console().print(plain("No call is unknown.", "dim"))
    else:
        console().print(_table(found))


def settle_command(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    happened: Annotated[
        bool | None,
        typer.Option(
            "--happened/--did-not", help="What the provider says about the call.", show_default=False
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="How you know; it is kept.")] = "",
    by: ByOption = None,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="With --happened: what the call returned.")
    ] = None,
    consumer: ConsumerOption = None,
    source: Annotated[str | None, typer.Option("--source", help="Of this source only.")] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Decide about a call that may have happened.

    --happened finishes the message: it is done, and duplicates get the result. --did-not puts it back into
    the queue, and the call is made again with the same idempotency key. Ask the provider first.

    [bold]Examples[/]

      oncebox effects settle evt-42 --happened --result '{"receipt": "re_7"}' --reason "seen in the provider's log"
      oncebox effects settle evt-42 --did-not --reason "provider has no such key" --consumer mailer
    """
    check_id(message_id)
    if happened is None:
        raise UsageError("say what became of the call: --happened or --did-not")
    if not reason.strip():
        raise UsageError('say how you know: --reason "…"; it is kept with the effect')
    if result is not None and not happened:
        raise UsageError("--result goes with --happened: a call that did not happen returned nothing")
    target = find_target(database, app, schema)
    done = ask(
        target,
        settle(
            target.database.queries, message_id, happened=happened, reason=reason.strip(), who=who(by),
            result=_decoded(result), consumer=consumer, source=source,
        ),
    )  # fmt: skip
    if as_json:
        print_json(done)
    else:
        what = "done" if happened else "back in the queue; the call is made again with the same key"
        console().print(plain(f"{done.consumer}: {done.id} is {what}"))


def _decoded(result: str | None) -> Any:
    try:
        return msgspec.json.decode(result) if result is not None else None
    except msgspec.DecodeError:
        raise UsageError("--result is not JSON; quote it for your shell: --result '{\"id\": 1}'") from None


def _table(found: list[OpenEffect]) -> Rows:
    columns = ("consumer", "source", "id", "state", "calls", "age", "idempotency key", "why")
    table = Rows("calls whose end is not known", columns, right=("calls", "age"))
    for each in found:
        table.add(
            plain(each.consumer), plain(each.source), plain(each.id, "bold"), plain(each.state),
            str(each.calls), age(each.age_seconds), plain(each.idempotency_key), plain(each.note),
        )  # fmt: skip
    return table
