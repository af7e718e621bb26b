"""What a source or a sink needs on the server: found, checked, or made when asked to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from redis import exceptions
from redis.asyncio import Redis as Client

from oncebox.brokers.redis.connection import Server
from oncebox.errors import ConfigError

log = logging.getLogger("oncebox")

OLDEST = 7


async def find_group(
    client: Client, server: Server, stream: str, group: str, *, create: bool, alone: bool
) -> None:
    """The group is there, and `alone` if it is to be. `ConfigError` with how to make it when it is not and
    not `create`."""
    found = await groups_of(client, server, stream)
    if alone and (others := (found or {}).keys() - {group}):
        raise ConfigError(
            f"stream {stream!r} is also read by {', '.join(sorted(others))}: delete=True would take their "
            "messages away"
        )
    if found is not None and group in found:
        await _check_unread(client, stream, group, found[group])
        return
    if not create:
        missing = f"stream {stream!r}" if found is None else f"group {group!r} of stream {stream!r}"
        raise ConfigError(
            f"{missing} does not exist on {server.where}; create it "
            f"(XGROUP CREATE {stream} {group} 0 MKSTREAM) or pass create=True"
        )
    try:
        # From the very first entry: what was appended before the group was made is not skipped.
        await client.xgroup_create(stream, group, "0", mkstream=True)
    except exceptions.ResponseError as error:
        if "BUSYGROUP" not in str(error):  # else another consumer was faster
            raise


async def find_stream(client: Client, server: Server, stream: str, create: bool) -> None:
    """The stream is there, or may be made by the first message."""
    if await groups_of(client, server, stream) is None and not create:
        raise ConfigError(
            f"stream {stream!r} does not exist on {server.where}; create it with its consumers' groups "
            f"(XGROUP CREATE {stream} GROUP 0 MKSTREAM) or pass create=True"
        )


async def groups_of(client: Client, server: Server, stream: str) -> dict[str, Mapping[str, Any]] | None:
    """The stream's groups by name, or None where there is no stream."""
    try:
        found = await client.xinfo_groups(stream)
    except exceptions.ResponseError as error:
        if "no such key" in str(error).lower():
            return None
        if "WRONGTYPE" in str(error):
            raise ConfigError(f"{stream!r} on {server.where} is not a stream; name another key") from error
        raise
    return {group["name"].decode(): group for group in found}


async def check_server(client: Client, server: Server) -> None:
    """`ConfigError` for a server that is too old; a warning where it would lose what it has accepted."""
    for why in await losses(client, server):
        log.warning("%s %s", server.where, why)


async def losses(client: Client, server: Server) -> tuple[str, ...]:
    """Why the server may lose what it has accepted; `ConfigError` when it is too old."""
    try:
        version = str((await client.info("server"))["redis_version"])
        settings = await client.config_get("append*")
        settings |= await client.config_get("maxmemory-policy")
    except (exceptions.ResponseError, KeyError):
        return ()  # hosted servers hide these; then nobody can tell
    if int(version.partition(".")[0]) < OLDEST:
        raise ConfigError(f"{server.where} is Redis {version}; oncebox needs {OLDEST} or newer")
    found: list[str] = []
    if settings.get("appendonly") != "yes":
        found.append(
            "keeps no append-only file: what it has accepted is lost when it dies; set appendonly yes"
        )
    elif settings.get("appendfsync") != "always":
        found.append(
            "writes to disk once a second: a power cut loses what it has accepted since; "
            "set appendfsync always where that matters"
        )
    if str(settings.get("maxmemory-policy", "")).startswith("allkeys"):
        found.append(
            f"evicts any key when memory is short ({settings['maxmemory-policy']}), streams included; "
            "set maxmemory-policy noeviction"
        )
    return tuple(found)


async def _check_unread(client: Client, stream: str, group: str, info: Mapping[str, Any]) -> None:
    """Tell when entries were removed that this group had never seen, as far as Redis can tell."""
    about = await client.xinfo_stream(stream)
    read = 0 if info["last-delivered-id"] == b"0-0" else info.get("entries-read")
    first = about["first-entry"]
    all_unread = first is None or _place(first[0]) > _place(info["last-delivered-id"])
    if read is None or not all_unread:
        return
    lost = about.get("entries-added", 0) - read - about["length"]
    if lost > 0:
        log.warning(
            "stream %s: %d entries were removed before group %s had read them; trim by what is handled "
            "(XTRIM MINID), not by length",
            stream,
            lost,
            group,
        )


def _place(entry: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number or 0)
