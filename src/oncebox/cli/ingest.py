"""`oncebox ingest FILE --consumer NAME`: old data from a file, each line taken once."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from oncebox.app import App
from oncebox.cli.ingest_view import Aside, Bar, view
from oncebox.cli.options import DebugOption, JsonOption
from oncebox.cli.output import console, print_json
from oncebox.cli.resolve import APP_VARIABLE, app_target, find_app
from oncebox.consumer import Consumer
from oncebox.core.outcomes import Outcome, Status
from oncebox.core.work import Item
from oncebox.errors import ConfigError, OnceboxError
from oncebox.identity import Identity, field
from oncebox.ingest.backfill import Ingest, Stopped, Take
from oncebox.ingest.lines import Line, Lines

STDIN = "-"
_WHICH = "Which message a line is"
INTERRUPTED = 130


def ingest_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="JSON lines, or a JSON array; plain or gzip. - is standard input."
        ),
    ],
    consumer: Annotated[
        str, typer.Option("--consumer", "-c", metavar="NAME", help="The consumer that gets the messages.")
    ],
    app: Annotated[
        str | None,
        typer.Option(
            "--app", metavar="MODULE:APP", envvar=APP_VARIABLE, help="The app that has the consumer."
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            "--id-field",
            metavar="PATH",
            help="Where a line has its id, as in data.id. Default: CloudEvents' own, else as the consumer's "
            "identity says.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    type: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option("--type", metavar="TYPE", help="The type of every line.", rich_help_panel=_WHICH),
    ] = None,
    type_field: Annotated[
        str | None,
        typer.Option(
            "--type-field", metavar="PATH", help="Where a line has its type.", rich_help_panel=_WHICH
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="The logical producer, as the live messages name it (CloudEvents carry their own).",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", metavar="PATH", help="Where a line has its key.", rich_help_panel=_WHICH),
    ] = None,
    from_line: Annotated[
        int, typer.Option("--from-line", min=1, metavar="N", help="Leave out what comes before this line.")
    ] = 1,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            metavar="N",
            help="Lines per transaction of an inline consumer, here alone. Default: as its policy says.",
            show_default=False,
        ),
    ] = None,
    rejected: Annotated[
        Path | None,
        typer.Option(
            "--rejected",
            metavar="FILE",
            help="Where lines go that are no messages, as they are. Default: FILE.rejected.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check every line, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Take messages from a file: a backfill that can be run again at any time.

    Each line is a message of the consumer, handled or stored in its mode. A line that was taken before, from
    here or from the broker, is a duplicate: to resume, run the same command again. A line that is not JSON,
    or that nothing identifies, is reported with its number and kept aside; the rest goes on.
    Exit code 1 when lines were rejected or are dead.

    [bold]Examples[/]

      oncebox ingest events.ndjson --consumer billing --app shop:app
      oncebox ingest old.ndjson.gz -c billing --id-field id --type paid --dry-run
      oncebox ingest events.ndjson -c billing --app shop:app --batch 100
      zcat *.gz | oncebox ingest - -c billing --id-field id --type-field kind
    """
    if app is None:
        raise ConfigError(f"no app named; give --app module:app, or set {APP_VARIABLE}")
    found = find_app(app)
    chosen = consumer_of(found, consumer)
    identity = identity_of(chosen, id_field, type, type_field, source)
    _check_type(chosen, type)
    if batch is not None:
        _share_transactions(chosen, batch)
    started = time.monotonic()
    with (
        app_target(found, app).named(),
        opened(file) as raw,
        _aside(file, rejected, from_line, dry_run) as aside,
        _taking(found, chosen, dry_run) as take,
    ):
        lines = Lines(raw, line_bytes_max(chosen), aside.write)
        with Bar(file, raw, lines, shown=not as_json) as bar:

            def reject(line: Line, reason: str) -> None:
                aside.reject(line, reason)
                if not as_json:
                    bar.say(line, reason)

            key = field(key_field) if key_field is not None else None
            name = "stdin" if file == STDIN else Path(file).name
            run = Ingest(
                chosen, identity, take, file=name, key=key, rejected=reject, progress=lambda: bar.show(run)
            )
            with _stopped_in_order(run):
                problem = _run(run, lines, from_line)
    document = _document(file, chosen, run, aside, time.monotonic() - started, problem, dry_run)
    if as_json:
        print_json(document)
    else:
        console().print(view(document))
    if problem is not None:
        problem.add_note(document["next"])
        raise problem
    if run.stopping:
        raise typer.Exit(INTERRUPTED)
    if run.rejects or run.outcomes["dead"]:
        raise typer.Exit(1)


def _run(run: Ingest, lines: Lines, from_line: int) -> OnceboxError | None:
    """To the end; what ended it before that is returned, so that the summary comes first."""
    try:
        run.run(lines, from_line)
    except OnceboxError as error:
        return error
    return None


def consumer_of(app: App, name: str) -> Consumer:
    """The app's consumer of that name; ConfigError lists those it has."""
    if name not in app.consumers:
        raise ConfigError(
            f"the app has no consumer {name!r}; it has: {', '.join(sorted(app.consumers)) or 'none'}"
        )
    return app.consumers[name]


def identity_of(
    consumer: Consumer, id_field: str | None, kind: str | None, type_field: str | None, source: str | None
) -> Identity:
    """The consumer's own identity, where live messages have theirs, with what the command says."""
    if kind is not None and type_field is not None:
        raise ConfigError("--type and --type-field: keep one of them")
    words: dict[str, Any] = {}
    if id_field is not None:
        words["id"] = field(id_field)
    if kind is not None or type_field is not None:
        words["type"] = kind if type_field is None else field(type_field)
    if source is not None:
        words["source"] = source
    return msgspec.structs.replace(consumer.intake.identity, **words)


def _check_type(consumer: Consumer, kind: str | None) -> None:
    """A mistyped type would be a whole file among the dead."""
    registry = consumer.registry
    if kind is not None and registry.all() and registry.find(kind) is None:
        raise ConfigError(f"--type {kind}: {consumer.intake.unknown_type(kind)}")


def _share_transactions(consumer: Consumer, batch: int) -> None:
    """A policy for this process: live messages are handled by others, one by one as ever."""
    if consumer.policy.mode != "inline":
        raise ConfigError(
            "--batch is for inline consumers; what is stored is stored 1,000 lines at a time anyway"
        )
    consumer.policy = msgspec.structs.replace(consumer.policy, batch=batch)


def line_bytes_max(consumer: Consumer) -> int:
    """Room for the largest payload in a CloudEvent's base64."""
    return consumer.policy.payload_bytes_max * 4 // 3 + 64 * 1024


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """The file, or standard input; ConfigError when it can't be read."""
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        raw = open(file, "rb")  # noqa: SIM115 - closed below; only opening is to be explained
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror or error}") from None
    with raw:
        yield raw


@contextmanager
def _aside(file: str, named: Path | None, from_line: int, dry_run: bool) -> Iterator[Aside]:
    path = named or Path("stdin.rejected" if file == STDIN else f"{file}.rejected")
    if file != STDIN and path.exists() and path.samefile(file):
        raise ConfigError(f"--rejected {path}: that is the file to read")
    aside = Aside(None if dry_run else path, append=from_line > 1)
    try:
        yield aside
    finally:
        aside.close()


@contextmanager
def _taking(app: App, consumer: Consumer, dry_run: bool) -> Iterator[Take]:
    """How items are taken: blocking where that is possible, else on a loop of our own."""
    if dry_run:
        yield _checked
    elif app.database.serves_sync and (consumer.policy.mode == "stored" or not _is_async(consumer)):
        try:
            yield consumer.take_sync
        finally:
            app.close()
    else:
        with asyncio.Runner() as runner:
            try:
                yield lambda items: runner.run(consumer.take(items))
            finally:
                runner.run(app.aclose())


def _is_async(consumer: Consumer) -> bool:
    return bool(consumer.registry.all()) and consumer.registry.is_async


def _checked(items: list[Item]) -> None:
    for item in items:
        item.outcome = Outcome(Status.SUPPRESSED)


@contextmanager
def _stopped_in_order(run: Ingest) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends after what is in hand; the next one ends at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: object) -> None:
        run.stopping = True
        for each, handler in before.items():
            signal.signal(each, handler)
        if run.waiting:
            raise Stopped

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _document(
    file: str,
    consumer: Consumer,
    run: Ingest,
    aside: Aside,
    seconds: float,
    problem: OnceboxError | None,
    dry_run: bool,
) -> dict[str, Any]:
    ended = "failed" if problem is not None else "interrupted" if run.stopping else "done"
    outcomes = {"would be taken": run.outcomes.total()} if dry_run else dict(run.outcomes.most_common())
    return {
        "file": file,
        "consumer": consumer.name,
        "mode": consumer.policy.mode,
        "ended": ended,
        "lines": run.lines,
        "outcomes": outcomes,
        "rejected": run.rejects,
        "rejected_file": str(aside.path) if aside.written and aside.path is not None else None,
        "rejects": aside.rejects,
        "last_line": run.last,
        "next": ""
        if ended == "done"
        else f"up to line {run.last:,} all is on record; run it again, or with --from-line {run.last + 1}",
        "seconds": round(seconds, 3),
        "lines_per_second": round(run.lines / seconds) if seconds else 0,
    }
