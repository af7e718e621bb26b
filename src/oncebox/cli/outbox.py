"""`oncebox outbox`: outgoing messages that were given up, and what a person decides about them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from oncebox.cli.asking import ByOption, ask, who
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import find_target
from oncebox.cli.tables import Rows
from oncebox.cli.text import age, count
from oncebox.core.audit import Act
from oncebox.core.parked import COUNT_MAX, Choice, Decision, Parked, count_parked, decide, parked
from oncebox.errors import UsageError
from oncebox.message import check_id

IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The messages' ids.", show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="Every parked message, or every one of --type.")]
ApplyOption = Annotated[bool, typer.Option("--apply", help="With --all: do it, instead of saying how many.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="Of this type only.")]
SourceOption = Annotated[str | None, typer.Option("--source", help="Of this source only.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision came to."""

    act: str
    decision: Decision
    applied: bool
    count: int
    """Messages that were changed; without `--apply`, that would be."""
    ids: list[str] = []
    """The first thousand of them."""


def list_command(
    kind: TypeOption = None,
    source: SourceOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List outgoing messages that are parked, in the order they were published.

    Parked are those that a broker has refused too often or for good, and those whose type fits no sink's
    pattern. Nothing else waits for them.

    [bold]Examples[/]

      oncebox outbox list --app shop:app
      oncebox outbox list --type receipt.requested --json
    """
    target = find_target(database, app, schema)
    found = ask(target, parked(target.database.queries, Choice(type=kind, source=source)))
    if as_json:
        print_json({"parked": found})
    elif not found:
        console().print(plain("Nothing is parked.", "dim"))
    else:
        console().print(_table(found))


def retry_command(
    ids: IdsArgument = None,
    every: AllOption = False,
    apply: ApplyOption = False,
    kind: TypeOption = None,
    source: SourceOption = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Have parked messages published after all: same id, fresh budget.

    [bold]Examples[/]

      oncebox outbox retry 0198c0de-… --reason "topic was created" --app shop:app
      oncebox outbox retry --all --type receipt.requested --reason "sink was added"          says how many
      oncebox outbox retry --all --type receipt.requested --reason "sink was added" --apply
    """
    _decide("retry", ids, every, apply, kind, source, reason, by, (database, app, schema), as_json)


def discard_command(
    ids: IdsArgument = None,
    every: AllOption = False,
    apply: ApplyOption = False,
    kind: TypeOption = None,
    source: SourceOption = None,
    reason: ReasonOption = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete parked messages: they are never published. The audit keeps their ids and your reason.

    [bold]Examples[/]

      oncebox outbox discard 0198c0de-… --reason "order was cancelled" --app shop:app
      oncebox outbox discard --all --type test.event --reason "left over from a test" --apply
    """
    _decide("discard", ids, every, apply, kind, source, reason, by, (database, app, schema), as_json)


def _decide(
    decision: Decision,
    ids: list[str] | None,
    every: bool,
    apply: bool,
    kind: str | None,
    source: str | None,
    reason: str,
    by: str | None,
    where: tuple[str | None, str | None, str | None],
    as_json: bool,
) -> None:
    ids = list(dict.fromkeys(ids or []))
    for each in ids:
        check_id(each)
    if bool(ids) == every:
        raise UsageError("name the messages: ids, or --all (with --type and --source, if you like)")
    if apply and not every:
        raise UsageError("--apply goes with --all; messages that are named are changed at once")
    if not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    target = find_target(*where)
    queries = target.database.queries
    choice = Choice(ids=tuple(ids), type=kind, source=source)
    chosen: dict[str, object] = {"ids": ids or None, "all": every or None, "type": kind, "source": source}
    act = Act(verb=f"outbox {decision}", who=who(by), reason=reason.strip(), filter=chosen)
    if every and not apply:
        would = ask(target, count_parked(queries, choice))
        _say(Done(act=act.id, decision=decision, applied=False, count=would), as_json)
        return
    # A bound on the loop: what is parked anew while this runs is not chased for ever.
    done: list[Parked] = []
    left = ask(target, count_parked(queries, choice)) if every else len(ids)
    while left > 0 and (changed := ask(target, decide(queries, decision, choice, act))):
        done += changed
        left -= len(changed)
    if not every and (missing := set(ids) - {each.id for each in done}):
        names = ", ".join(repr(each) for each in sorted(missing)[:5])
        said = f"; the other {len(done)} are done" if done else ""
        raise UsageError(f"not parked: {names} (oncebox outbox list shows what is){said}")
    first = [each.id for each in done[:1000]]
    _say(Done(act=act.id, decision=decision, applied=True, count=len(done), ids=first), as_json)


def _say(done: Done, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    what = "published" if done.decision == "retry" else "deleted"
    number = count(done.count, COUNT_MAX)
    if done.applied:
        text = f"{number} will be published" if done.decision == "retry" else f"{number} deleted"
    else:
        text = f"{number} would be {what}; do it with --apply"
    console().print(plain(text))


def _table(found: list[Parked]) -> Rows:
    right = ("attempts", "parked")
    table = Rows(
        "outgoing messages that are parked", ("id", "type", "topic", "key", *right, "why"), right=right
    )
    for each in found:
        table.add(
            plain(each.id, "bold"), plain(each.type), plain(each.topic or ""), plain(each.key or ""),
            str(each.attempts), age(each.parked_seconds), plain(each.error),
        )  # fmt: skip
    return table
