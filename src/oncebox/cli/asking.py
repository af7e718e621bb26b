"""What the commands share that look at a database or change it by hand."""

from __future__ import annotations

import asyncio
import getpass
import socket
from typing import Annotated, Any

import typer

from oncebox.cli.resolve import Target
from oncebox.core.steps import Op
from oncebox.runtime.inspect import Reader
from oncebox.runtime.schema import verify_schema_async

ByOption = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", help="Who decides, for the audit. Default: your login name, on this host."
    ),
]


def who(by: str | None) -> str:
    """Who an audit row names."""
    if by:
        return by
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def ask(target: Target, op: Op[Any]) -> Any:
    """What a flow says about the database that is meant."""
    target.must_exist()

    async def answer() -> Any:
        await verify_schema_async(target.database)
        reader = Reader(target.database)
        try:
            return await reader.ask(op)
        finally:
            await reader.close()

    with target.named():
        return asyncio.run(answer())
