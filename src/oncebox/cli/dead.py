"""`oncebox dead`: messages that are not tried again by themselves, and what a person decides about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oncebox.cli.asking import ByOption, ask
from oncebox.cli.deciding import Replaced, choice, decide_all, none_found, one, public, say_one, table
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.core.dead import replace, resolve
from oncebox.core.unfinished import all_dead
from oncebox.errors import UsageError

IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The messages' ids.", show_default=False)
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The message's id.")]
ConsumerOption = Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")]
SourceOption = Annotated[str | None, typer.Option("--source", help="Of this source only.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Of this type only.")]
WhyOption = Annotated[
    str | None, typer.Option("--why", help="Dead for this reason only: exhausted, terminal, conflict, …")
]
ErrorOption = Annotated[str | None, typer.Option("--error", help="With an error of this class only.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Of this key only.")]
OlderOption = Annotated[
    str | None, typer.Option("--older", metavar="TIME", help="Dead for longer than this: 90s, 15m, 6h, 2d.")
]
NewerOption = Annotated[str | None, typer.Option("--newer", metavar="TIME", help="Dead for less than this.")]
AllOption = Annotated[bool, typer.Option("--all", help="All that the other options leave.")]
ApplyOption = Annotated[bool, typer.Option("--apply", help="With --all: do it, instead of saying how many.")]
RateOption = Annotated[
    float, typer.Option("--rate", metavar="N", help="At most so many a second; 0: as fast as it goes.", min=0)
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")]


def list_command(
    ids: IdsArgument = None,
    consumer: ConsumerOption = None,
    source: SourceOption = None,
    kind: TypeOption = None,
    why: WhyOption = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    older: OlderOption = None,
    newer: NewerOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List dead messages, in the order in which they would run again, and what the guard left unfinished.

    oncebox show ID has everything that is kept of one.

    [bold]Examples[/]

      oncebox dead list --app shop:app
      oncebox dead list --consumer billing --why exhausted --error TimeoutError --newer 2h
    """
    target = find_target(database, app, schema)
    chosen = choice(ids, consumer, source, kind, why, error, key, older, newer)
    found = ask(target, all_dead(target.database.queries, chosen))
    if as_json:
        print_json({"dead": [public(each) for each in found]})
    elif not found:
        console().print(plain(none_found(target, chosen), "dim"))
    else:
        console().print(table(found))


def redrive_command(
    ids: IdsArgument = None,
    every: AllOption = False,
    apply: ApplyOption = False,
    consumer: ConsumerOption = None,
    source: SourceOption = None,
    kind: TypeOption = None,
    why: WhyOption = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    older: OlderOption = None,
    newer: NewerOption = None,
    rate: RateOption = 0.0,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run dead messages again: same id and headers, fresh budget, in the order of their keys.

    Without --apply, --all says how many of which kind there are. Conflicts are settled by dead resolve.
    Of a claim that the guard left unfinished only the id is kept: its next delivery is the first again.

    [bold]Examples[/]

      oncebox dead redrive evt-42 --reason "the account exists now" --app shop:app
      oncebox dead redrive --all --error TimeoutError --newer 2h --reason "provider was down"
      oncebox dead redrive --all --error TimeoutError --newer 2h --reason "provider was down" --rate 50 --apply
    """
    chosen = choice(ids, consumer, source, kind, why, error, key, older, newer)
    decide_all("redrive", chosen, every, apply, rate, reason, by, (database, app, schema), as_json)


def discard_command(
    ids: IdsArgument = None,
    every: AllOption = False,
    apply: ApplyOption = False,
    consumer: ConsumerOption = None,
    source: SourceOption = None,
    kind: TypeOption = None,
    why: WhyOption = None,
    error: ErrorOption = None,
    key: KeyOption = None,
    older: OlderOption = None,
    newer: NewerOption = None,
    rate: RateOption = 0.0,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let dead messages go: they never run, and another delivery of them is answered "discarded".

    [bold]Examples[/]

      oncebox dead discard evt-42 --reason "order was cancelled" --app shop:app
      oncebox dead discard --all --type test.event --reason "left over from a test" --apply
    """
    chosen = choice(ids, consumer, source, kind, why, error, key, older, newer)
    decide_all("discard", chosen, every, apply, rate, reason, by, (database, app, schema), as_json)


def resolve_command(
    message_id: IdArgument,
    stands: Annotated[
        str, typer.Option("--stands", metavar="first|second", help="Which payload is to have its effect.")
    ] = "",
    consumer: ConsumerOption = None,
    source: SourceOption = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Settle a conflict: two messages came under one id. See both with oncebox show ID --payload.

    first lets the later one go. second has it take effect too, as a message of its own with a new id that
    names the old one: what the first has done stays done.

    [bold]Examples[/]

      oncebox dead resolve evt-42 --stands first --reason "producer sent a broken copy" --app shop:app
    """
    if stands not in ("first", "second"):
        raise UsageError("say which payload stands: --stands first, or --stands second")
    chosen = choice([message_id], consumer, source, None, "conflict", None, None, None, None)
    target, act, letter = one("dead resolve", chosen, reason, by, (database, app, schema))
    now = ask(target, resolve(target.database.queries, letter, stands, act))  # type: ignore[arg-type]
    say_one(Replaced(act=act.id, id=now, stands=stands), as_json)


def edit_command(
    message_id: IdArgument,
    payload: Annotated[
        Path | None,
        typer.Option("--payload", metavar="FILE", help="What it should have said.", show_default=False),
    ] = None,
    consumer: ConsumerOption = None,
    source: SourceOption = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a dead message with another payload. It is a new message with a new id that names the old one,
    which is discarded.

    [bold]Examples[/]

      oncebox dead edit evt-42 --payload fixed.json --reason "amount was in cents" --app shop:app
    """
    if payload is None:
        raise UsageError("name the file with the new payload: --payload fixed.json")
    try:
        body = payload.read_bytes()
    except OSError as error:
        raise UsageError(f"--payload {payload}: can't be read ({error.strerror})") from None
    chosen = choice([message_id], consumer, source, None, None, None, None, None, None)
    target, act, letter = one("dead edit", chosen, reason, by, (database, app, schema))
    now = ask(target, replace(target.database.queries, letter, act, payload=body))
    say_one(Replaced(act=act.id, id=now, stands="edited"), as_json)
