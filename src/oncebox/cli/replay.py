"""`oncebox replay MODULE:APP CONSUMER`: handle again what was handled, or see what that would change."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from oncebox.app import App
from oncebox.cli.asking import ByOption, who
from oncebox.cli.ingest import INTERRUPTED, consumer_of, identity_of, line_bytes_max, opened
from oncebox.cli.options import DebugOption, JsonOption
from oncebox.cli.output import console, print_json
from oncebox.cli.replay_view import Bar, Doing, replayed, shadowed
from oncebox.cli.replay_words import ago, chosen_by, utc
from oncebox.cli.resolve import Target, find_app
from oncebox.consumer import Consumer
from oncebox.core.replay import replay
from oncebox.core.replay_terms import Chosen, Order
from oncebox.core.replaying import Placed
from oncebox.core.shadow import shadow
from oncebox.core.steps import Op
from oncebox.core.work import Item, Work
from oncebox.errors import ConfigError, UsageError
from oncebox.ingest.backfill import Ingest
from oncebox.ingest.lines import Lines
from oncebox.replay import order, perform, perform_async, placed_by

T = TypeVar("T")
_WHICH = "Which messages"
_FROM = "From where"
_HOW = "How"


def replay_command(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app that has the consumer.")],
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="Whose handlers run again.")],
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="This message.", rich_help_panel=_WHICH)
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Of this type only.", rich_help_panel=_WHICH)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Of this key only.", rich_help_panel=_WHICH)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="First received at this time or later: 2026-01-31, 2026-01-31T12:00, or 6h, 2d ago.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="First received before this time.", rich_help_panel=_WHICH
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Messages of a file, as oncebox ingest reads it.",
            rich_help_panel=_FROM,
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="URL",
            help="A folder or s3:// URL: what was archived there, together with what is still here.",
            rich_help_panel=_FROM,
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option("--id-field", metavar="PATH", help="Where a line has its id.", rich_help_panel=_FROM),
    ] = None,
    type_field: Annotated[
        str | None,
        typer.Option(
            "--type-field", metavar="PATH", help="Where a line has its type.", rich_help_panel=_FROM
        ),
    ] = None,
    is_shadow: Annotated[
        bool,
        typer.Option(
            "--shadow", help="Roll everything back, and say what would change.", rich_help_panel=_HOW
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            max=10_000,
            metavar="N",
            help="Messages per transaction; else as policy says.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    skip_failures: Annotated[
        bool,
        typer.Option(
            "--skip-failures",
            help="Pass over what can't be handled, and put it on record.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    reset: Annotated[
        bool | None,
        typer.Option(
            "--reset/--no-reset",
            help="Whether the consumer's reset empties its tables first; to be said where it has one.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Give up the run that is open, and begin anew.", rich_help_panel=_HOW),
    ] = False,
    stopped: Annotated[
        bool,
        typer.Option(
            "--stopped", help="No worker of this consumer is at work; you vouch for it.", rich_help_panel=_HOW
        ),
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit.")] = "",
    by: ByOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Handle messages again, as the consumer's policy allows: replay="rebuild" or "suppress_effects".

    Covers what was done when it begins; live traffic goes on beside it. A replay that was stopped or killed goes
    on by the same command. --shadow changes nothing, and says what would change.

    [bold]Examples[/]

      oncebox replay shop:app page --shadow
      oncebox replay shop:app page --reset --reason "new column"
      oncebox replay shop:app page --since 2d --type order.paid --reason "a day was lost" --json
      oncebox replay shop:app page --file old.ndjson.gz --id-field id --reason "from the export"
    """
    found = find_app(app)
    chosen = consumer_of(found, consumer)
    words = chosen_by(ids, kind, key, since, until)
    if file is not None and archive is not None:
        raise UsageError("--file and --archive: keep one of them")
    if file is not None and (since is not None or until is not None):
        raise UsageError("--since and --until: a line does not say when it was received")
    if not is_shadow and not reason.strip():
        raise UsageError('say why: --reason "…"; it is kept in the audit')
    doing = Doing(consumer=chosen.name, shadow=is_shadow)
    target = Target(found.database, f"the app {app}")
    target.must_exist()
    with target.named(), _read(chosen, file, id_field, type_field, doing) as given:
        asked = order(
            chosen, reason=reason or "shadow", by=who(by), chosen=words, reset=False if is_shadow else reset,
            origin=_origin(file, archive), given=given, ago=ago(since=since, until=until),
            archived=_archived(chosen, archive, words),
            skip_failures=skip_failures, restart=restart, stopped=stopped, **({"batch": batch} if batch else {}),
        )  # fmt: skip
        document = _do(found, chosen, asked, doing, as_json)
    if as_json:
        print_json(document)
    else:
        console().print(shadowed(document) if is_shadow else replayed(document))
    if document["ended"] != "done":
        raise typer.Exit(INTERRUPTED)


def _origin(file: str | None, archive: str | None) -> str:
    """What the run is known by: the file's own name, not where it lies."""
    return f"file {Path(file).name}" if file is not None else "archive" if archive is not None else "ledger"


def _archived(consumer: Consumer, url: str | None, chosen: Chosen) -> Iterator[Placed] | None:
    if url is None:
        return None
    from oncebox.archive import messages, parts

    if not parts(url, consumer=consumer.name):
        # A reset empties the consumer's tables: what was to fill them again must be there before.
        others = sorted({part.consumer for part in parts(url)})
        raise UsageError(
            f"--archive {url}: nothing of consumer {consumer.name!r} lies there"
            + (f", only of {', '.join(map(repr, others))}" if others else "")
            + "; see oncebox archive list, or leave --archive out to replay what is still here"
        )
    found = messages(url, consumer=consumer.name, since=utc(chosen.since), until=utc(chosen.until))
    # The first one is read now, so that a damaged part or a missing library is known before anything is emptied.
    first = list(islice(found, 1))
    return (placed_by(consumer, each.place or 0, each.message(replay=True)) for each in chain(first, found))


@contextmanager
def _read(
    consumer: Consumer, file: str | None, id_field: str | None, type_field: str | None, doing: Doing
) -> Iterator[Iterator[Placed] | None]:
    """The lines of a file as messages; None without one."""
    if file is None:
        if id_field is not None or type_field is not None:
            raise ConfigError("--id-field and --type-field go with --file")
        yield None
        return
    identity = identity_of(consumer, id_field, None, type_field, None)
    with opened(file) as raw:
        lines = Lines(raw, line_bytes_max(consumer), lambda piece: None)
        doing.file = (raw, lines)
        reader = Ingest(consumer, identity, _untaken, file=Path(file).name)

        def placed() -> Iterator[Placed]:
            for line in lines:
                if line.body.strip() or line.problem:
                    item, problem = reader.read(line)
                    if item is not None:
                        item.message = msgspec.structs.replace(item.message, replay=True)
                    yield Placed(line.number, item, problem)

        yield placed()


def _untaken(items: list[Item]) -> None:
    raise AssertionError("a replay takes by itself")


def _do(app: App, consumer: Consumer, asked: Order, doing: Doing, as_json: bool) -> dict[str, Any]:
    began = time.monotonic()
    with Bar(doing, shown=not as_json) as bar, _stopping() as stopping:
        flow: Callable[[Work], Op[Any]] = (
            (lambda work: shadow(work, asked, bar.show, stopping))
            if doing.shadow
            else (lambda work: replay(work, asked, bar.show, stopping))
        )
        came = _performed(app, consumer, flow)
    seconds = time.monotonic() - began
    document: dict[str, Any] = msgspec.to_builtins(came)
    return {**document, "seconds": round(seconds, 3)}


def _performed(app: App, consumer: Consumer, flow: Callable[[Work], Op[T]]) -> T:
    """Blocking where that is possible, else on a loop of our own."""
    is_async = bool(consumer.registry.all()) and consumer.registry.is_async
    if app.database.serves_sync and not is_async:
        try:
            return perform(consumer, flow)
        finally:
            app.close()
    with asyncio.Runner() as runner:
        try:
            return runner.run(perform_async(consumer, flow))
        finally:
            runner.run(app.aclose())


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM ends after what is in hand; the next one ends at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    asked: list[int] = []

    def stop(number: int, frame: object) -> None:
        asked.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
