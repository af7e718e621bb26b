"""The commands, put together. Nothing here does anything by itself."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from oncebox import __version__
from oncebox.cli import failure
from oncebox.cli.archive import list_command as archive_list
from oncebox.cli.archive import restore_command as archive_restore
from oncebox.cli.audit import audit_command
from oncebox.cli.dead import discard_command as dead_discard
from oncebox.cli.dead import edit_command as dead_edit
from oncebox.cli.dead import list_command as dead_list
from oncebox.cli.dead import redrive_command as dead_redrive
from oncebox.cli.dead import resolve_command as dead_resolve
from oncebox.cli.doctor import doctor_command
from oncebox.cli.effects import list_command as effects_list
from oncebox.cli.effects import settle_command as effects_settle
from oncebox.cli.ingest import ingest_command
from oncebox.cli.keys import list_command as keys_list
from oncebox.cli.keys import reset_command as keys_reset
from oncebox.cli.keys import skip_command as keys_skip
from oncebox.cli.keys import unblock_command as keys_unblock
from oncebox.cli.outbox import discard_command as outbox_discard
from oncebox.cli.outbox import list_command as outbox_list
from oncebox.cli.outbox import retry_command as outbox_retry
from oncebox.cli.partition import partition_command
from oncebox.cli.purge import purge_command
from oncebox.cli.replay import replay_command
from oncebox.cli.run import run_command as run_app
from oncebox.cli.schema import migrate_command, print_command
from oncebox.cli.show import show_command
from oncebox.cli.status import status_command
from oncebox.cli.teach import show_flags_bare, teach
from oncebox.cli.watermarks import forget_command as watermarks_forget
from oncebox.cli.watermarks import list_command as watermarks_list
from oncebox.errors import ConfigError, OnceboxError

_TRY = "Try it"
_RUN = "Run"
_LOOK = "Look"
_TABLES = "Tables"
_DECIDE = "Decide"

app = typer.Typer(
    name="oncebox",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
archive_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="What retention has forgotten.")
dead_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Messages that are given up.")
effects_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Calls whose end is not known.")
keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Ordered keys that stand still.")
outbox_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Messages that did not get out.")
schema_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="The tables as SQL text.")
watermarks_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="How far partitions are handled."
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"oncebox {__version__}")
        raise typer.Exit


def oncebox(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Each message takes effect once, in your own database, however often a broker delivers it.

    [bold]The first minute[/]

      oncebox demo                           see what kill -9 and duplicates do
      oncebox migrate --app shop:app         create the tables
      oncebox run shop:app                   run `app` in shop.py
      oncebox status --app shop:app --watch  see how it does
      oncebox show evt-42 --app shop:app     all that is kept of one message
      oncebox doctor shop:app                what is wrong, why it matters, what to do

    Commands find the database by --database URL (or @file), else by --app module:app or ONCEBOX_APP, else by
    ONCEBOX_DATABASE_URL. Each takes --json. Exit codes: 0 done, 1 failed, 2 something must be changed first.
    """


app.callback(help=teach(oncebox))(oncebox)


@app.command(
    "demo",
    rich_help_panel=_TRY,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def demo(context: typer.Context) -> None:
    """See payments lost and doubled by kill -9 and duplicates, then the same with oncebox."""
    # Options and help are the demo's own; it is loaded only when it is asked for.
    if find_spec("oncebox.demo") is None:
        raise ConfigError(
            "this installation of oncebox has no demo; install it from PyPI: pip install oncebox"
        )
    from oncebox.demo.command import demo_command

    single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    single.command("demo")(demo_command)
    single(context.args, prog_name="oncebox demo")


app.command("run", help=teach(run_app), rich_help_panel=_RUN)(run_app)
app.command("ingest", help=teach(ingest_command), rich_help_panel=_RUN)(ingest_command)
app.command("status", help=teach(status_command), rich_help_panel=_LOOK)(status_command)
app.command("show", help=teach(show_command), rich_help_panel=_LOOK)(show_command)
app.command("audit", help=teach(audit_command), rich_help_panel=_LOOK)(audit_command)
app.command("doctor", help=teach(doctor_command), rich_help_panel=_LOOK)(doctor_command)
app.command("migrate", help=teach(migrate_command), rich_help_panel=_TABLES)(migrate_command)
app.command("partition", help=teach(partition_command), rich_help_panel=_TABLES)(partition_command)
archive_app.command("list", help=teach(archive_list))(archive_list)
archive_app.command("restore", help=teach(archive_restore))(archive_restore)
dead_app.command("list", help=teach(dead_list))(dead_list)
dead_app.command("redrive", help=teach(dead_redrive))(dead_redrive)
dead_app.command("discard", help=teach(dead_discard))(dead_discard)
dead_app.command("resolve", help=teach(dead_resolve))(dead_resolve)
dead_app.command("edit", help=teach(dead_edit))(dead_edit)
effects_app.command("list", help=teach(effects_list))(effects_list)
effects_app.command("settle", help=teach(effects_settle))(effects_settle)
keys_app.command("list", help=teach(keys_list))(keys_list)
keys_app.command("unblock", help=teach(keys_unblock))(keys_unblock)
keys_app.command("skip", help=teach(keys_skip))(keys_skip)
keys_app.command("reset", help=teach(keys_reset))(keys_reset)
outbox_app.command("list", help=teach(outbox_list))(outbox_list)
outbox_app.command("retry", help=teach(outbox_retry))(outbox_retry)
outbox_app.command("discard", help=teach(outbox_discard))(outbox_discard)
watermarks_app.command("list", help=teach(watermarks_list))(watermarks_list)
watermarks_app.command("forget", help=teach(watermarks_forget))(watermarks_forget)
app.command("replay", help=teach(replay_command), rich_help_panel=_DECIDE)(replay_command)
app.command("purge", help=teach(purge_command), rich_help_panel=_DECIDE)(purge_command)
schema_app.command("print", help=teach(print_command))(print_command)


@schema_app.callback()
def schema() -> None:
    """The tables as SQL text, for migrations that are run by others."""


@archive_app.callback()
def archive() -> None:
    """What retention has forgotten, where it was archived: list it, and have it known again."""


@dead_app.callback()
def dead() -> None:
    """Messages that are not tried again by themselves: list them, run them again, let them go."""


@effects_app.callback()
def effects() -> None:
    """Calls to the outside whose end is not known: list them, and decide."""


@keys_app.callback()
def keys() -> None:
    """Ordered keys that stand still: list them, and have them go on."""


@outbox_app.callback()
def outbox() -> None:
    """Outgoing messages that were given up: list them, try again, or let go."""


@watermarks_app.callback()
def watermarks() -> None:
    """Partitions whose duplicates are told by watermark: how far they are handled, and have one start anew."""


app.add_typer(archive_app, name="archive", rich_help_panel=_DECIDE)
app.add_typer(dead_app, name="dead", rich_help_panel=_DECIDE)
app.add_typer(keys_app, name="keys", rich_help_panel=_DECIDE)
app.add_typer(outbox_app, name="outbox", rich_help_panel=_DECIDE)
app.add_typer(effects_app, name="effects", rich_help_panel=_DECIDE)
app.add_typer(watermarks_app, name="watermarks", rich_help_panel=_DECIDE)
app.add_typer(schema_app, name="schema", rich_help_panel=_TABLES)


def run_command() -> int:
    """Parse, perform, and turn what went wrong into one line; the exit code."""
    debug = "--debug" in sys.argv[1:] or os.environ.get("ONCEBOX_DEBUG", "") not in ("", "0")
    try:
        command = typer.main.get_command(app)
        show_flags_bare(command)
        command(prog_name="oncebox")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BrokenPipeError:
        # `oncebox show … | head`: the reader has gone; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failure.FAILED
    except (OnceboxError, Exception) as error:
        return failure.report(error, debug=debug)
    return 0
