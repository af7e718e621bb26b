"""`oncebox run module:app`: the app at work, in one process or in several under a supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from oncebox import __version__
from oncebox.app import App
from oncebox.cli.failure import MISUSED, exit_code, explain
from oncebox.cli.logs import Level, set_up
from oncebox.cli.options import DebugOption
from oncebox.cli.output import print_json
from oncebox.cli.resolve import APP_VARIABLE, app_target, find_app
from oncebox.cli.stacks import tell_on_signal
from oncebox.cli.stopping import Stopping, leave
from oncebox.errors import ConfigError, OnceboxError
from oncebox.metrics import Operations
from oncebox.metrics.operations import PATHS
from oncebox.runtime.http import INHERITED, Mounts, Serving, listen, place_of, serving
from oncebox.runtime.running import PARTS, Running
from oncebox.runtime.schema import check_schema_async
from oncebox.runtime.supervisor import (
    CONFIG_EXIT,
    PLACE_VARIABLE,
    STOP_SECONDS,
    WORKER_VARIABLE,
    Supervisor,
)

log = logging.getLogger("oncebox")

_LOGS = "Logs (to standard error)"
WORKERS_MAX = 256


def run_command(
    reference: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app is `app` in shop.py."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", envvar=APP_VARIABLE, help="The same, as an option."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=1,
            max=WORKERS_MAX,
            metavar="N",
            envvar="ONCEBOX_WORKERS",
            help="Processes to run.",
        ),
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PART",
            help="Run only sources (receiving; an inline message is handled where it is received), only "
            "workers (handling what is stored) or only the relay (publishing). Repeat it, or separate by commas.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            envvar="ONCEBOX_HTTP",
            help="Serve /healthz, /readyz, /metrics and the app's webhooks here. Worker processes share the one "
            "port. fd:N is a listening socket that was opened by somebody else.",
        ),
    ] = None,
    log_level: Annotated[
        Level, typer.Option("--log-level", envvar="ONCEBOX_LOG_LEVEL", rich_help_panel=_LOGS)
    ] = Level.INFO,
    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json", envvar="ONCEBOX_LOG_JSON", help="One JSON object per line.", rich_help_panel=_LOGS
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on standard output when it has ended.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run an app: receive, handle, commit, ack, until it is asked to stop.

    The first SIGTERM or Ctrl-C drains: nothing more is received, what is in hand finishes and is acked,
    the rest stays un-acked for others. The second stops at once: what is in hand rolls back, uncounted.
    Many machines may run the same command against one database.

    [bold]Examples[/]

      oncebox run shop:app
      oncebox run shop:app --workers 4 --log-json
      oncebox run shop:app --http 127.0.0.1:8000 # webhooks, metrics, health
      oncebox run shop:app --only sources        # here, and elsewhere:
      oncebox run shop:app --only workers --workers 8
    """
    set_up(log_level, as_json=log_json)
    worker = os.environ.pop(WORKER_VARIABLE, None)
    try:
        named = _one_of(reference, app)
        parts = _parts(only or [])
        found = find_app(named)
        ended = Ended(named, workers, as_json=as_json and worker is None)
        with app_target(found, named).named(), _listening(found, http) as listening:
            if workers > 1 and worker is None:
                # The parent only starts, counts and waits; uvloop would gain nothing here.
                command = _child(named, parts, log_level, log_json, listening)
                asyncio.run(_supervise(found, command, workers, ended, listening))
            else:
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(_serve(found, named, parts, worker, ended, listening))
    except OnceboxError as error:
        if worker is not None and exit_code(error) == MISUSED:
            log.error("%s", explain(error))
            raise typer.Exit(CONFIG_EXIT) from None
        raise


class Ended:
    """Says how the run ended, as JSON if that is wanted, and ends the process if it can't wait."""

    def __init__(self, app: str, workers: int, *, as_json: bool) -> None:
        self._document = {"app": app, "workers": workers}
        self._as_json = as_json
        self._started = time.monotonic()

    def report(self, stopping: Stopping) -> None:
        """Called on the loop, before it closes: closing it waits for threads that a handler may block."""
        at_once = stopping.exit_code != 0
        log.log(logging.WARNING if at_once else logging.INFO, "stopped%s", " at once" if at_once else "")
        if self._as_json:
            seconds = round(time.monotonic() - self._started, 3)
            print_json({**self._document, "ended": "at once" if at_once else "drained", "seconds": seconds})
        if at_once:
            leave(stopping.exit_code)


def _one_of(reference: str | None, app: str | None) -> str:
    """The argument, else the option; ONCEBOX_APP stands in for either."""
    if reference is None and app is None:
        raise ConfigError(f"no app named; write: oncebox run module:app (or set {APP_VARIABLE})")
    return reference or app or ""


def _parts(only: list[str]) -> tuple[str, ...]:
    chosen = [part.strip() for words in only for part in words.split(",")]
    for part in chosen:
        if part not in PARTS:
            raise ConfigError(f"--only {part}: the parts are {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in chosen) or PARTS


@contextmanager
def _listening(app: App, http: str | None) -> Iterator[socket.socket | None]:
    """The socket to serve on, opened before anything runs; None where nothing is to be served."""
    if http is None:
        if app.http:
            log.info("the app has webhooks, which are not served here: --http HOST:PORT serves them")
        yield None
        return
    with listen(http) as listening:
        yield listening


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (oncebox[fast]), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    app: App,
    named: str,
    parts: tuple[str, ...],
    worker: str | None,
    ended: Ended,
    listening: socket.socket | None,
) -> None:
    """Run until asked to stop."""
    asked = asyncio.Event()
    place = os.environ.pop(PLACE_VARIABLE, None)
    operations = Operations(app, shared=Path(place) if place else None) if listening is not None else None
    running: Running | None = None
    http: Serving | None = None
    starting = asyncio.current_task()
    assert starting is not None

    def hurry() -> None:
        asked.set()
        if http is not None:
            http.hurry()
        if running is not None:
            running.hurry()
        else:
            starting.cancel()

    stopping = Stopping(asked.set, hurry)
    (stopping.listen if worker is None else stopping.obey)()
    tell_on_signal()
    try:
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(app.running(only=parts, worker=worker))
            stack.push_async_callback(app.aclose)
            if listening is not None and operations is not None:
                await stack.enter_async_context(operations.watching(running))
                # Entered last, so left first: no more requests while the rest drains.
                served = _served(app, operations)
                serve = serving(served, listening, drain_seconds=app.drain_seconds, ended=asked.set)
                http = await stack.enter_async_context(serve)
                log.info("serving %s", place_of(listening))
            consumers = ", ".join(sorted(app.consumers)) or "no consumers"
            where = app.database.place
            log.info(
                "oncebox %s runs %s (%s) on %s: %s", __version__, named, " + ".join(parts), where, consumers
            )
            await asked.wait()
            log.info("stopping: nothing more is received, what is in hand finishes")
    except asyncio.CancelledError:
        if not stopping.exit_code:
            raise
    ended.report(stopping)


def _served(app: App, operations: Operations) -> Mounts:
    """The app's own pages, and beside them what operators ask for, where the app has nothing of that name."""
    mounts = Mounts()
    for path in PATHS:
        if path not in app.http:
            mounts.add(path, operations)
    mounts.add("", app.http)
    return mounts


async def _supervise(
    app: App, command: list[str], workers: int, ended: Ended, listening: socket.socket | None
) -> None:
    """Look after children until asked to stop, or until they can't start as they are told to."""
    await check_schema_async(app.database)
    with ExitStack() as stack:
        folder = None
        if listening is not None:
            # Where the children tell each other what they have counted: a scrape reaches only one of them.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="oncebox-metrics-")))
        supervisor = Supervisor(
            app.database,
            command,
            workers,
            drain_seconds=app.drain_seconds,
            listening=listening,
            folder=folder,
        )
        stopping = Stopping(supervisor.drain, supervisor.stop, seconds=2 * STOP_SECONDS + 1)
        stopping.listen()
        tell_on_signal()
        log.info("oncebox %s looks after %d worker processes on %s", __version__, workers, app.database.place)
        if not await supervisor.run():
            raise ConfigError("a worker process could not start; its own log line above says what to change")
    ended.report(stopping)


def _child(
    named: str, parts: tuple[str, ...], level: Level, log_json: bool, listening: socket.socket | None
) -> list[str]:
    """A child's command: a fresh interpreter, told everything by arguments and environment."""
    command = [sys.executable, "-m", "oncebox.cli", "run", named, "--only", ",".join(parts), "--workers", "1"]
    if listening is not None:
        command += ["--http", f"{INHERITED}{listening.fileno()}"]
    return [*command, "--log-level", level, *(["--log-json"] if log_json else [])]
