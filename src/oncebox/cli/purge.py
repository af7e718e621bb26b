"""`oncebox purge`: forget what is past its window now, or say what that would be."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from oncebox.archive.places import check_url
from oncebox.cli.failure import FAILED
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.cli.text import age, count, many, seconds_of
from oncebox.errors import ArchiveError, UsageError
from oncebox.runtime.keeper import new_worker_id
from oncebox.runtime.schema import verify_schema_async
from oncebox.runtime.sweeper import Sweeper, windows_of


class Purged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a purge came to."""

    applied: bool
    counts: dict[str, int]
    """Ledger rows by consumer that were deleted; with `--dry-run`, that would be."""
    windows: dict[str, float]
    """Seconds, by consumer."""
    complete: bool
    """Whether the whole ledger was walked: False when another process is at it."""
    archived: dict[str, int] = {}
    """Rows by consumer that were written to its archive."""
    failed: dict[str, str] = {}
    """Why an archive took nothing more, by consumer: what it did not take is not deleted."""
    partitions: list[str] = []
    """Partitions of days that are past and were dropped; with `--dry-run`, would be once they are empty."""


def purge_command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")] = False,
    consumer: Annotated[str | None, typer.Option("--consumer", "-c", help="Of this consumer only.")] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", help="With --consumer: this window instead of its own."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="FOLDER|URL",
            help="With --consumer: its archive, where no app is named that knows it.",
        ),
    ] = None,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete what is past its consumer's window from the ledger. oncebox run does this by itself.

    Windows and archives are the app's (--app), or those that are named. What has an archive is written there first.
    What waits, is dead, unfinished or unknown stays.

    [bold]Examples[/]

      oncebox purge --dry-run --app shop:app
      oncebox purge --consumer billing --retention 14d --database postgresql://…
    """
    target = find_target(database, app, schema)
    target.must_exist()
    with target.named():
        windows = _windows(target, consumer, retention)
        done = asyncio.run(_purge(target, windows, _archives(target, consumer, archive), dry_run))
    if as_json:
        print_json(done)
        if done.failed:
            raise typer.Exit(FAILED)
        return
    console().print(_table(done))
    if done.partitions:
        verb = "dropped" if done.applied else "would be dropped"
        console().print(
            plain(f"{many(len(done.partitions), 'partition')} {verb}: {', '.join(done.partitions)}")
        )
    if done.failed:
        raise ArchiveError(f"{'; '.join(done.failed.values())}; what it did not take is not deleted")
    if not done.complete:
        console().print(plain("Another process walks the ledger right now; try again later.", "bold"))
    elif dry_run:
        console().print(plain("Nothing was deleted: this was a dry run.", "dim"))


def _windows(target: Target, consumer: str | None, retention: str | None) -> dict[str, float]:
    if retention is not None:
        if consumer is None:
            raise UsageError("--retention goes with --consumer: windows are a consumer's own")
        named = seconds_of(retention, "--retention")
        own = windows_of(target.app.consumers.values()).get(consumer) if target.app is not None else None
        if named is not None and own is not None and named < own:
            raise UsageError(
                f"--retention {retention} is shorter than the window of consumer {consumer!r} ({age(own)}): a message "
                "that is delivered again would take effect again; change its policy first"
            )
        return {consumer: named or 0.0}
    if target.app is None:
        raise UsageError("name the app whose windows count (--app shop:app), or --consumer and --retention")
    windows = windows_of(target.app.consumers.values())
    if consumer is not None:
        if consumer not in target.app.consumers:
            raise UsageError(
                f"the app has no consumer {consumer!r}; it has: {', '.join(sorted(target.app.consumers))}. For "
                "one of the guard's, name its window: --retention 30d"
            )
        windows = {name: seconds for name, seconds in windows.items() if name == consumer}
    return windows


def _archives(target: Target, consumer: str | None, archive: str | None) -> dict[str, str]:
    own = target.app.consumers.values() if target.app is not None else ()
    archives = {each.name: each.policy.archive for each in own if each.policy.archive is not None}
    if archive is not None:
        if consumer is None:
            raise UsageError("--archive goes with --consumer: archives are a consumer's own")
        if archives.get(consumer, archive) != archive:
            raise UsageError(
                f"--archive {archive} is not the archive of consumer {consumer!r}: {archives[consumer]}"
            )
        archives[consumer] = check_url(archive)
    return archives


async def _purge(
    target: Target, windows: dict[str, float], archives: dict[str, str], dry_run: bool
) -> Purged:
    await verify_schema_async(target.database)
    sweeper = Sweeper(target.database, (), f"purge:{new_worker_id()}")
    sweeper.windows = windows
    sweeper.archives = {name: url for name, url in archives.items() if name in windows}
    if dry_run:
        counts = dict(await sweeper.count()) if windows else {}
        return Purged(applied=False, counts=counts, windows=windows, complete=True, partitions=sweeper.over)
    complete = True
    if windows:
        complete = await sweeper.cycle(rest_seconds=0.0, most_seconds=float("inf"))
    return Purged(
        applied=True,
        counts=dict(sweeper.counts),
        windows=windows,
        complete=complete,
        archived=dict(sweeper.archived),
        failed={name: str(error) for name, error in sweeper.failed.items()},
        partitions=sweeper.over,
    )


def _table(done: Purged) -> Table:
    table = Table(title="past their window", title_justify="left", title_style="bold")
    table.add_column("consumer", no_wrap=True)
    table.add_column("window", justify="right")
    table.add_column("deleted" if done.applied else "would be deleted", justify="right")
    for consumer, seconds in sorted(done.windows.items()):
        table.add_row(plain(consumer, "bold"), age(seconds), count(done.counts.get(consumer, 0)))
    return table
