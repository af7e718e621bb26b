"""`oncebox show ID`: all that is kept of one message."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from oncebox.cli.message_view import Payloads, document, view
from oncebox.cli.options import AppOption, DatabaseOption, DebugOption, JsonOption, SchemaOption
from oncebox.cli.output import console, print_json
from oncebox.cli.resolve import Target, find_target
from oncebox.errors import OnceboxError
from oncebox.message import check_id
from oncebox.runtime.inspect import Reader
from oncebox.runtime.records import Record, read_message
from oncebox.runtime.schema import verify_schema_async


def show_command(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's id, as its producer set it.")
    ],
    consumer: Annotated[
        str | None, typer.Option("--consumer", "-c", help="Look at this consumer only.")
    ] = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show payload and header values too (they may be private).")
    ] = False,
    database: DatabaseOption = None,
    app: AppOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show one message: its state, result, failed attempts, and what was kept of it when it died.

    One id may be known to several consumers, and under several sources; each is shown. Exit code 1 when
    nobody knows it.

    [bold]States[/]

      waiting    stored, not yet handled
      working    a worker has it in hand
      retrying   an attempt failed; it is tried again by itself
      done       its effects are committed
      dead       not tried again by itself; the reason says why
      discarded  dropped on purpose

    [bold]Examples[/]

      oncebox show evt-42 --app shop:app
      oncebox show evt-42 --consumer billing --payload
      oncebox show --json -- -an-id-that-starts-with-a-dash
    """
    check_id(message_id)
    target = find_target(database, app, schema)
    target.must_exist()
    with target.named():
        records = asyncio.run(_read(target, message_id, consumer))
    if not records:
        among = f"consumer {consumer!r}" if consumer is not None else "any consumer"
        raise OnceboxError(
            f"no message {message_id!r} of {among} in {target.database.place}; ids are compared exactly"
        )
    payloads = Payloads(shown=payload, load=target.app.load if target.app is not None else None)
    if as_json:
        print_json({"id": message_id, "messages": [document(record, payloads) for record in records]})
    else:
        console().print(view(records, payloads))


async def _read(target: Target, message_id: str, consumer: str | None) -> list[Record]:
    await verify_schema_async(target.database)
    reader = Reader(target.database)
    try:
        return await reader.ask(read_message(target.database.queries, message_id, consumer))
    finally:
        await reader.close()
