"""`oncebox status`: how every consumer and every worker process does."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oncebox.cli.failure import explain
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, plain, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.cli.text import age, count
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
    reason, and of the last 5 minutes how many were processed and how many deliveries were duplicates.
    Below: what waits in the outbox or is parked there, and calls to the outside whose end is not known.
    An inline consumer's backlog is its broker's: what waits there is not counted here.

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
        return await reader.ask(read_status(target.database.queries, target.consumers))
    finally:
        await reader.close()


async def _watch(target: Target, interval: float, as_json: bool) -> None:
    """Until Ctrl-C. A database that goes away is waited for; what was last seen stays."""
    report = await _read(target)
    reader = Reader(target.database)
    problem = ""
    screen = console()
    try:
        with Live(console=screen, auto_refresh=False, screen=screen.is_terminal and not as_json) as live:
            while True:
                if as_json:
                    print_json({**document(target, report), "problem": problem or None}, indent=None)
                else:
                    live.update(view(target, report, problem), refresh=True)
                await asyncio.sleep(interval)
                try:
                    report = await reader.ask(read_status(target.database.queries, target.consumers))
                    problem = ""
                except DatabaseError as error:
                    problem = f"{explain(error)}; trying again"
    finally:
        await reader.close()


def document(target: Target, report: StatusReport) -> dict[str, object]:
    """The report as JSON says it."""
    found: dict[str, object] = msgspec.to_builtins(report)
    lapse = target.app.lapse_seconds if target.app is not None else LAPSE_SECONDS
    found["database"] = target.database.place
    found["consumers"] = [
        {**msgspec.to_builtins(consumer), "processed": consumer.processed, "duplicates": consumer.duplicates}
        for consumer in report.consumers
    ]
    found["workers"] = [
        {**msgspec.to_builtins(worker), "alive": worker.heartbeat_seconds <= lapse}
        for worker in report.workers
    ]
    return found


def view(target: Target, report: StatusReport, problem: str = "") -> RenderableType:
    """The report as tables."""
    parts: list[RenderableType] = [Text.assemble(("database ", "dim"), plain(target.database.place))]
    parts.append(_consumers(report))
    parts += [*_keys(report), *_outgoing(report)]
    lapse = target.app.lapse_seconds if target.app is not None else LAPSE_SECONDS
    parts.append(_workers(report.workers, lapse))
    if problem:
        parts.append(plain(problem, "bold red"))
    return Group(*parts)


def _consumers(report: StatusReport) -> RenderableType:
    if not report.consumers:
        return Padding(Text("No consumer has been here yet.", style="dim"), (1, 0))
    table = Table(title="consumers", title_justify="left", title_style="bold")
    table.add_column("consumer", no_wrap=True)
    for name in ("waiting", "oldest", "retrying", "working"):
        table.add_column(name, justify="right")
    table.add_column("dead")
    table.add_column("processed, 5 min", justify="right")
    table.add_column("duplicates, 5 min", justify="right")
    for consumer in report.consumers:
        cap = report.count_cap
        table.add_row(
            plain(consumer.consumer, "bold"),
            count(consumer.waiting, cap),
            age(consumer.oldest_seconds),
            count(consumer.retrying, cap),
            count(consumer.working, cap),
            _dead(consumer, cap),
            f"{consumer.processed:,} ({consumer.processed_per_second:,.1f}/s)",
            f"{consumer.duplicates:,}",
        )
    return table


def _keys(report: StatusReport) -> list[RenderableType]:
    """A line for each consumer with keys that stand still."""
    return [
        Text(
            f"{consumer.consumer}: {consumer.blocked_keys:,} keys blocked, {consumer.gapped_keys:,} with a gap "
            "(oncebox keys list)",
            style="red",
        )
        for consumer in report.consumers
        if consumer.blocked_keys or consumer.gapped_keys
    ]


def _outgoing(report: StatusReport) -> list[RenderableType]:
    """A line each for what is on its way out and for calls that are unknown; none where there is nothing."""
    outbox, cap = report.outbox, report.count_cap
    lines: list[RenderableType] = []
    if outbox.waiting or outbox.parked:
        text = f"outbox: {count(outbox.waiting, cap)} waiting"
        text += f", oldest {age(outbox.oldest_seconds)}" if outbox.waiting else ""
        parked = f", {count(outbox.parked, cap)} parked" if outbox.parked else ""
        lines.append(Text.assemble(text, (parked, "red")))
    if report.effects:
        states = ", ".join(f"{count(number, cap)} {state}" for state, number in report.effects.items())
        style = "red" if "parked" in report.effects else ""
        lines.append(Text(f"effects whose end is not known: {states} (oncebox effects list)", style=style))
    return lines


def _dead(consumer: ConsumerStatus, cap: int) -> Text:
    if not consumer.dead:
        return Text("0")
    return Text(", ", style="red").join(
        plain(f"{reason} {count(number, cap)}", "red") for reason, number in consumer.dead.items()
    )


def _workers(workers: list[WorkerStatus], lapse_seconds: float) -> RenderableType:
    if not workers:
        return Text("No worker process is running: oncebox run module:app starts one.", style="dim")
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
