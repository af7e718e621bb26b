"""`oncebox archive`: what lies in an archive, and how it gets back into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from oncebox.archive import parts, rows
from oncebox.archive.places import Folder, open_place
from oncebox.archive.writing import verify as verify_part
from oncebox.cli.asking import ByOption, who
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_app, find_target
from oncebox.cli.text import clean, count, many
from oncebox.core.archived import Archived
from oncebox.core.archiving import restore, unknown
from oncebox.core.audit import Act
from oncebox.errors import UsageError
from oncebox.message import check_id
from oncebox.runtime.inspect import Reader
from oncebox.runtime.schema import verify_schema_async

BATCH = 500
"""Rows that are put back in one transaction."""

AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="FOLDER|URL", help="The archive. Default: those of the app's consumers."),
]
ConsumerOption = Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Received from then on: 2026-03-01, or with a time, UTC."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Received before then.")]


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """One day of one consumer."""

    consumer: str
    day: str
    parts: int
    rows: int
    """As the parts have them; a row that was written twice counts twice."""
    size: int
    at: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore came to."""

    act: str
    applied: bool
    found: int
    """Rows of the archive that were meant."""
    restored: int
    """Those that the ledger did not know and knows now; with `--dry-run`, would know."""


def list_command(
    at: AtOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every part, and check its rows against its digest.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List what is archived, by consumer and day of receipt.

    [bold]Examples[/]

      oncebox archive list --app shop:app
      oncebox archive list --at s3://bucket/prefix --consumer billing --since 2026-03-01 --verify
    """
    span = {"since": _time(since, "--since"), "until": _time(until, "--until")}
    days: list[Day] = []
    for url, name in _places(at, app, consumer):
        place = open_place(url)
        found = parts(place, consumer=name, **span)
        for part in found if verify else ():
            verify_part(place, part)
        for (owner, day), group in groupby(found, key=lambda part: (part.consumer, part.day)):
            each = list(group)
            days.append(
                Day(
                    consumer=owner, day=day.isoformat(), parts=len(each), rows=sum(part.rows for part in each),
                    size=sum(part.size for part in each), at=url,
                )
            )  # fmt: skip
    if as_json:
        print_json({"days": days, "verified": verify})
    elif not days:
        console().print(plain("Nothing is archived there.", "dim"))
    else:
        console().print(_table(days))
        if verify:
            console().print(plain("Every part has the rows of its digest.", "bold"))


def restore_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="These messages only.", show_default=False),
    ] = None,
    at: AtOption = None,
    consumer: ConsumerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and change nothing.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    by: ByOption = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Put archived rows back into the ledger, so that what is delivered late is known again.

    Results and payloads that were archived come back, too. What the ledger knows stays as it is. What is put back
    has its whole window again, counted from now. The archive keeps its rows.

    [bold]Examples[/]

      oncebox archive restore --app shop:app --consumer billing --since 2026-03-01 --until 2026-03-08 --dry-run
      oncebox archive restore evt-42 --app shop:app --consumer billing --reason "the broker sends it again"
    """
    if consumer is None:
        raise UsageError("name whose rows: --consumer NAME")
    for each in ids or ():
        check_id(each)
    if not dry_run and not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    span = {"since": _time(since, "--since"), "until": _time(until, "--until")}
    [(url, _)] = _places(at, app, consumer)
    target = find_target(database, app, schema)
    target.must_exist()
    words: dict[str, object] = {
        "consumer": consumer,
        "since": since,
        "until": until,
        "ids": ids or None,
        "at": url,
    }
    act = Act(verb="archive restore", who=who(by), reason=reason.strip(), filter=words)
    wanted = frozenset(ids or ())
    chosen = (row for row in rows(url, consumer=consumer, **span) if not wanted or row.id in wanted)
    with target.named():
        done = asyncio.run(_restore(target, chosen, act, dry_run))
    if as_json:
        print_json(done)
        return
    verb = "would be known again" if dry_run else f"{'is' if done.restored == 1 else 'are'} known again"
    console().print(plain(f"{many(done.found, 'row')} found; {count(done.restored)} {verb}", "bold"))


async def _restore(target: Target, chosen: Iterator[Archived], act: Act, dry_run: bool) -> Restored:
    await verify_schema_async(target.database)
    queries, reader = target.database.queries, Reader(target.database)
    found = restored = 0
    try:
        while batch := list(islice(chosen, BATCH)):
            found += len(batch)
            if dry_run:
                restored += await reader.ask(unknown(queries, batch))
            else:
                restored += len(await reader.ask(restore(queries, batch, act)))
    finally:
        await reader.close()
    return Restored(act=act.id, applied=not dry_run, found=found, restored=restored)


def _places(at: str | None, app: str | None, consumer: str | None) -> list[tuple[str, str | None]]:
    """The archives that are meant, and whose rows there."""
    if at is not None:
        place = open_place(at)
        if isinstance(place, Folder) and not place.path.exists():
            raise UsageError(f"--at {at}: there is no such folder")
        return [(at, consumer)]
    if app is None:
        raise UsageError("name the archive: --at FOLDER or URL, or --app for those of its consumers")
    found = [
        (each.policy.archive, each.name)
        for each in find_app(app).consumers.values()
        if each.policy.archive is not None and consumer in (None, each.name)
    ]
    if not found:
        whose = f"consumer {clean(consumer)!r} of this app" if consumer else "no consumer of this app"
        raise UsageError(f"{whose} has {'no' if consumer else 'an'} archive; name it: --at FOLDER or URL")
    return sorted(found)


def _time(given: str | None, option: str) -> datetime | None:
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given.strip())
    except ValueError:
        raise UsageError(f"{option} {clean(given)!r}: a day or a time, as in 2026-03-01T12:00") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _table(days: list[Day]) -> Table:
    table = Table(title="archived", title_justify="left", title_style="bold")
    for name in ("consumer", "received on"):
        table.add_column(name, no_wrap=True)
    for name in ("parts", "rows", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("at")
    for each in days:
        values: list[Any] = [plain(each.consumer, "bold"), each.day, count(each.parts), count(each.rows)]
        table.add_row(*values, count(each.size), plain(each.at))
    return table
