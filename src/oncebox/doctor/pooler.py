"""What lies between us and PostgreSQL: a pooler, of which mode, and what gets through it."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, suppress
from typing import Any

from oncebox.core.steps import Begin, Call
from oncebox.core.work import new_token
from oncebox.doctor.findings import Finding, found
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.errors import DatabaseError
from oncebox.runtime.sessions import finished

RINGS = 40
"""How many NOTIFYs go unheard before they count as lost. By number, not by time alone: where everything is slow, so is
each of them."""
RING_EVERY_SECONDS = 0.2
NOTIFY_SECONDS_MAX = 60.0


async def check_pooler(database: Database) -> list[Finding]:
    """Whether the URL says what is in between, and what does not get through."""
    if database.dialect != "postgresql":
        return []
    mode = await _mode(database)
    findings = []
    if mode == "transaction" and not database.pooled:
        text = "statements of one connection reach different server processes"
        findings.append(found("pooler-unnamed", "database", text))
    if mode == "" and database.pooled:
        findings.append(
            found("pooler-absent", "database", "the URL says pooler=transaction, and there is none")
        )
    if mode == "transaction" and not await _keeps_prepared(database):
        text = "a prepared statement was gone when its connection got another server process"
        findings.append(found("pooler-prepared", "database", text))
    if not database.pooled and not await _notifies(database):
        text = f"none of {RINGS} NOTIFYs was heard"
        findings.append(found("notify-lost", "database", text))
    return findings


async def _mode(database: Database) -> str:
    """`transaction`, `session`, or nothing without a pooler (or where the driver does not tell)."""
    async with AsyncExitStack() as stack:
        first = await _connected(database, stack)
        pid = await _pid(first)
        if _said_pid(first) in (None, pid):
            return ""
        # A pooler makes up the number that it tells its client. In transaction mode a second one gets
        # the first one's server as long as that is idle, and the first one gets another.
        second = await _connected(database, stack)
        await finished(second.begin(Begin(new_token())))
        try:
            moved = pid == await _pid(second) or pid != await _pid(first)
        except DatabaseError:
            moved = True  # what the driver prepared is on a server that it no longer has
        finally:
            await finished(second.rollback())
        return "transaction" if moved else "session"


async def _keeps_prepared(database: Database) -> bool:
    async with AsyncExitStack() as stack:
        first, second = await _connected(database, stack), await _connected(database, stack)
        name = f"oncebox_doctor_{secrets.token_hex(8)}"
        again = await _prepared(first.raw, name)
        await finished(second.begin(Begin(new_token())))
        try:
            kept: bool = await again()
            return kept
        finally:
            with suppress(Exception):
                await finished(second.execute_text(f"DEALLOCATE {name}"))
            await finished(second.rollback())


async def _prepared(raw: Any, name: str) -> Any:
    """Prepare `SELECT 1` by the protocol; returns how to run it, which says whether it went well."""
    if hasattr(raw, "pgconn"):
        await asyncio.to_thread(raw.pgconn.prepare, name.encode(), b"SELECT 1")

        async def run() -> bool:
            result = await asyncio.to_thread(raw.pgconn.exec_prepared, name.encode(), [])
            return not result.error_message

        return run
    statement = await raw.prepare("SELECT 1", name=name)

    async def fetch() -> bool:
        try:
            await statement.fetchval()
        except Exception as error:
            if getattr(error, "sqlstate", None) != "26000":
                raise
            return False
        return True

    return fetch


async def _notifies(database: Database) -> bool:
    """Whether a NOTIFY of one connection is heard by another."""
    channel, heard = f"oncebox_doctor_{secrets.token_hex(8)}", asyncio.Event()
    async with AsyncExitStack() as stack:
        listening, ringing = await _connected(database, stack), await _connected(database, stack)
        task = asyncio.create_task(listening.listen(channel, heard.set))
        try:
            async with asyncio.timeout(NOTIFY_SECONDS_MAX):
                for _ in range(RINGS):
                    await finished(ringing.execute_text(f"NOTIFY {channel}"))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RING_EVERY_SECONDS):
                            await heard.wait()
                    if heard.is_set():
                        return True
        except TimeoutError:
            return False
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Behind a pooler it is somebody else's session by now.
            with suppress(Exception):
                await finished(ringing.execute_text(f"UNLISTEN {channel}"))
        return False


async def _connected(database: Database, stack: AsyncExitStack) -> Any:
    session: Any = await database.connect_async(Settings())
    stack.push_async_callback(lambda: finished(session.close()))
    return session


async def _pid(session: Any) -> int:
    [row] = await finished(session.fetch(Call(session.queries.doctor_server, {})))
    return int(row[5])


def _said_pid(session: Any) -> int | None:
    """What the other side said at the start that its process is."""
    raw = session.raw
    if hasattr(raw, "get_server_pid"):
        return int(raw.get_server_pid())
    return int(raw.info.backend_pid) if hasattr(raw, "info") else None
