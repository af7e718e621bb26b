"""`oncebox status`: how every consumer and every worker process does."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oncebox.cli.failure import explain
from oncebox.cli.keys import stuck_table
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.cli.status_lines import lines
from oncebox.cli.tables import Rows
from oncebox.cli.text import age, count
from oncebox.cli.watching import Look, compared, look
from oncebox.errors import DatabaseError
from oncebox.runtime.inspect import ConsumerStatus, Reader, StatusReport, WorkerStatus, read_status
from oncebox.runtime.schema import verify_schema_async

LAPSE_SECONDS = 10.0
"""Where no app says otherwise: a worker that was not heard of for so long is taken for dead."""


def status_command(
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep it on the screen until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="How often --watch looks.")
    ] = 2.0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what waits, what is worked on, what is dead, and who is alive.

    Per consumer: messages waiting, the age of the oldest, those being retried and worked on, the dead by
    reason, of the last 5 minutes how many were processed, failed and were duplicates, and how many messages are
    on record (all that there is to tell of consumers that only use the guard). Below: claims that were committed
    unfinished, types that wait and that no handler of the app takes, what waits in the outbox or is parked there, and
    calls whose end is not known; whose ledger lies in partitions by day, and who has watermarks.
    An inline consumer's backlog is its broker's: what waits there is not counted here.
    --watch adds what changes per second, and the keys that stand still.

    [bold]Examples[/]

      oncebox status --app shop:app
      oncebox status --database @/run/secrets/database-url --watch
      oncebox status --json | jq '.consumers[] | select(.dead != {})'
    """
    target = find_target(database, app, schema)
    target.must_exist()
    with target.named():
        try:
            asyncio.run(_watch(target, interval, as_json) if watch else _once(target, as_json))
        except KeyboardInterrupt:
            if not watch:
                raise


async def _once(target: Target, as_json: bool) -> None:
    report = await _read(target)
    if as_json:
        print_json(document(target, report))
    else:
        console().print(view(target, report))


async def _read(target: Target) -> StatusReport:
    await verify_schema_async(target.database)
    reader = Reader(target.database)
    try:
        return await reader.ask(
            read_status(target.database.queries, target.consumers, handled=target.handled, known=True)
        )
    finally:
        await reader.close()


async def _watch(target: Target, interval: float, as_json: bool) -> None:
    """Until Ctrl-C. A database that goes away is waited for; what was last seen stays."""
    await verify_schema_async(target.database)
    reader = Reader(target.database)
    began = time.monotonic()

    async def see(before: Look | None) -> Look:
        op = look(target.database.queries, target.consumers, target.handled, began, time.monotonic())
        return compared(await reader.ask(op), before)

    problem = ""
    screen = console()
    try:
        seen = await see(None)
        with Live(console=screen, auto_refresh=False, screen=screen.is_terminal and not as_json) as live:
            while True:
                if as_json:
                    print_json({**watched(target, seen), "problem": problem or None}, indent=None)
                else:
                    live.update(view(target, seen.report, problem, seen), refresh=True)
                await asyncio.sleep(interval)
                try:
                    seen = await see(seen)
                    problem = ""
                except DatabaseError as error:
                    problem = f"{explain(error)}; trying again"
    finally:
        await reader.close()


def watched(target: Target, seen: Look) -> dict[str, object]:
    """A look as JSON says it."""
    return {**document(target, seen.report), "rates": seen.rates, "keys": seen.keys}


def document(target: Target, report: StatusReport) -> dict[str, object]:
    """The report as JSON says it."""
    found: dict[str, object] = msgspec.to_builtins(report)
    lapse = target.app.lapse_seconds if target.app is not None else LAPSE_SECONDS
    found["database"] = target.database.place
    found["consumers"] = [
        {
            **msgspec.to_builtins(consumer),
            "processed": consumer.processed,
            "duplicates": consumer.duplicates,
            "failed": consumer.failed,
            "observed": consumer.observed,
        }
        for consumer in report.consumers
    ]
    found["workers"] = [
        {**msgspec.to_builtins(worker), "alive": worker.heartbeat_seconds <= lapse}
        for worker in report.workers
    ]
    return found


def view(target: Target, report: StatusReport, problem: str = "", seen: Look | None = None) -> RenderableType:
    """The report as tables; with a look of a watch, what changes too."""
    parts: list[RenderableType] = [Text.assemble(("database ", "dim"), plain(target.database.place))]
    parts.append(_consumers(report))
    if seen is not None and seen.rates:
        parts.append(_rates(seen))
    parts += lines(report)
    if seen is not None and seen.keys:
        parts.append(stuck_table(seen.keys))
    lapse = target.app.lapse_seconds if target.app is not None else LAPSE_SECONDS
    if report.workers:
        parts.append(_workers(report.workers, lapse))
    elif report.outbox.waiting or any(each.waiting or each.retrying for each in report.consumers):
        parts.append(Text("No worker process is running: oncebox run module:app starts one.", style="dim"))
    if problem:
        parts.append(plain(problem, "bold red"))
    return Group(*parts)


def _consumers(report: StatusReport) -> RenderableType:
    if not report.consumers:
        return Text("\nNo consumer has been here yet.", style="dim")
    title = "consumers; processed, failed and duplicates in 5 minutes"
    now = ("waiting", "oldest", "retrying", "working")
    lately = ("processed", "failed", "duplicates", "on record")
    table = Rows(title, ("consumer", *now, "dead", *lately), right=now + lately, second=2 + len(now))
    for consumer in report.consumers:
        cap = report.count_cap
        table.add(
            plain(consumer.consumer, "bold"),
            count(consumer.waiting, cap),
            age(consumer.oldest_seconds),
            count(consumer.retrying, cap),
            count(consumer.working, cap),
            _dead(consumer, cap),
            f"{consumer.processed:,} ({consumer.processed_per_second:,.1f}/s)",
            Text(f"{consumer.failed:,}", style="yellow" if consumer.failed else ""),
            f"{consumer.duplicates:,}",
            count(consumer.known, cap) if consumer.known is not None else "-",
        )
    return table


def _rates(seen: Look) -> RenderableType:
    """What changed since the last look."""
    table = Table(title="per second, since the last look", title_justify="left", title_style="bold")
    table.add_column("consumer", no_wrap=True)
    for name in ("processed", "failed", "duplicates", "queue grows by", "oldest"):
        table.add_column(name, justify="right")
    ages = {each.consumer: each.oldest_seconds for each in seen.report.consumers}
    for name, rates in seen.rates.items():
        failing = Text(f"{rates.failed:,.1f}", style="yellow" if rates.failed else "")
        table.add_row(
            plain(name, "bold"), f"{rates.processed:,.1f}", failing, f"{rates.duplicates:,.1f}",
            f"{rates.waiting:+,.1f}", age(ages.get(name)),
        )  # fmt: skip
    return table


def _dead(consumer: ConsumerStatus, cap: int) -> Text:
    if not consumer.dead:
        return Text("0")
    return Text(", ", style="red").join(
        plain(f"{reason} {count(number, cap)}", "red") for reason, number in consumer.dead.items()
    )


def _workers(workers: list[WorkerStatus], lapse_seconds: float) -> RenderableType:
    table = Table(title="workers", title_justify="left", title_style="bold")
    table.add_column("host", no_wrap=True)
    for name in ("pid", "up", "heartbeat", "in hand"):
        table.add_column(name, justify="right")
    for worker in workers:
        lapsed = worker.heartbeat_seconds > lapse_seconds
        beat = f"{age(worker.heartbeat_seconds)} ago" + (", lapsed" if lapsed else "")
        table.add_row(
            plain(worker.host),
            str(worker.pid),
            age(worker.up_seconds),
            Text(beat, style="red" if lapsed else ""),
            count(worker.in_hand),
        )
    return table
