"""A message's records as tables for people and as JSON; payloads and header values only when asked for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oncebox.cli.output import lines, plain
from oncebox.cli.text import many, moment
from oncebox.core.audit import Deed
from oncebox.errors import OnceboxError
from oncebox.runtime.performer import CLAIM_CHECK
from oncebox.runtime.records import Attempt, Body, Grave, Lane, Record

_STYLES = {"done": "green", "dead": "red", "retrying": "yellow", "working": "cyan", "waiting": "cyan"}


class Payloads(msgspec.Struct, frozen=True):
    """Whether payloads are shown, and how to get those that an app's store keeps."""

    shown: bool
    load: Callable[[str], bytes] | None = None

    def of(self, body: Body) -> bytes:
        """The payload, from the store where only a reference is in the row."""
        reference = next((value for name, value in body.headers if name == CLAIM_CHECK), None)
        if reference is None:
            return body.payload
        if self.load is None:
            raise OnceboxError("the payload is kept in the app's store; name the app with --app to see it")
        return self.load(reference.decode())


def document(record: Record, payloads: Payloads) -> dict[str, Any]:
    """A record as JSON says it: times in ISO 8601, fingerprints in hexadecimal."""
    return {
        "consumer": record.consumer,
        "source": record.source,
        "id": record.id,
        "type": record.type,
        "state": record.state,
        "reason": record.reason or None,
        "received": _iso(record.received),
        "again": _iso(record.again),
        "finished": _iso(record.finished),
        "fingerprint": record.fingerprint.hex() or None,
        "result": record.result,
        "queue": None
        if record.queue is None
        else {
            "attempts": record.queue.attempts,
            "deaths": record.queue.deaths,
            "due": _iso(record.queue.due),
            "received": _iso(record.queue.received),
            **_body_document(record.queue.body, payloads),
        },
        "attempts": [{**msgspec.to_builtins(attempt), "at": _iso(attempt.at)} for attempt in record.attempts],
        "dead": [_grave_document(grave, payloads) for grave in record.dead],
        "lane": None
        if record.lane is None
        else {
            **msgspec.structs.asdict(record.lane),
            "blocked_since": _iso(record.lane.blocked_since),
            "gap_since": _iso(record.lane.gap_since),
        },
        "deeds": [{**msgspec.structs.asdict(deed), "at": _iso(deed.at)} for deed in record.deeds],
    }


def _grave_document(grave: Grave, payloads: Payloads) -> dict[str, Any]:
    return {
        "reason": grave.reason,
        "type": grave.type,
        "received": _iso(grave.received),
        "died": _iso(grave.died),
        "attempts": grave.attempts,
        "error_type": grave.error_type,
        "error": grave.error,
        "traceback": grave.traceback,
        "fingerprint": grave.fingerprint.hex(),
        **_body_document(grave.body, payloads),
    }


def _body_document(body: Body, payloads: Payloads) -> dict[str, Any]:
    known = {
        "content_type": body.content_type,
        "provenance": body.provenance,
        "header_names": [name for name, _ in body.headers],
        "payload_bytes": len(body.payload),
    }
    if not payloads.shown:
        return known
    return {
        **known,
        "payload": _value(payloads.of(body)),
        "headers": [[name, _value(value)] for name, value in body.headers],
    }


def _value(value: bytes) -> dict[str, str]:
    """Bytes that are text as text, others in base64."""
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="microseconds")


def view(records: list[Record], payloads: Payloads) -> RenderableType:
    """Every record, one below the other."""
    return Group(*(Padding(_record(record, payloads), (0, 0, 1, 0), expand=False) for record in records))


def _record(record: Record, payloads: Payloads) -> RenderableType:
    facts = _facts()
    state = Text(record.state, style=_STYLES.get(record.state, ""))
    facts.add_row("consumer", plain(record.consumer, "bold"))
    facts.add_row("id", plain(record.id, "bold"))
    facts.add_row("source", plain(record.source or "(none)"))
    facts.add_row("state", state + plain(f": {record.reason}") if record.reason else state)
    if record.received is None:
        facts.add_row(
            "", Text("not in the ledger: its attempts failed, and its broker delivers it again", "dim")
        )
    else:
        facts.add_row("type", plain(record.type or "(none)"))
        facts.add_row("received", moment(record.received))
    if record.again is not None:
        facts.add_row("in line again", moment(record.again))
    if record.finished is not None and record.state == "done":
        facts.add_row("finished", moment(record.finished))
    if record.has_result:
        facts.add_row("result", plain(json.dumps(record.result, ensure_ascii=False)))
    parts: list[RenderableType] = [facts]
    if record.queue is not None:
        place = record.queue
        facts.add_row(
            "due",
            f"{moment(place.due)}, after {many(place.attempts, 'failed attempt')} and {many(place.deaths, 'death')}",
        )
        _add_body(facts, place.body, payloads)
    if record.lane is not None:
        _add_lane(facts, record, record.lane)
    if record.attempts:
        parts.append(_attempts(record.attempts))
    if record.deeds:
        parts.append(_deeds(record.deeds))
    parts += [_grave(grave, record, payloads) for grave in record.dead]
    if payloads.shown and record.queue is None and not record.dead:
        facts.add_row("payload", Text("not kept once a message is done", "dim"))
    return Group(*parts)


def _add_lane(facts: Table, record: Record, lane: Lane) -> None:
    """Which key it is of, and what it waits for."""
    version = f", version {lane.version}" if lane.version is not None else ""
    facts.add_row("key", plain(f"{lane.key}{version}", "bold"))
    if lane.blocked_by == record.id:
        facts.add_row("", plain(f"blocks its key since {moment(lane.blocked_since)}", "red"))
    elif lane.blocked_by is not None:
        text = (
            f"waits: its key is blocked by dead message {lane.blocked_by} since {moment(lane.blocked_since)}"
        )
        facts.add_row("", plain(text, "red"))
    if record.queue is None:
        return
    if lane.gap_since is not None:
        text = f"waits: a version after {lane.last} is missing since {moment(lane.gap_since)} (oncebox keys list)"
        facts.add_row("", plain(text, "yellow"))
    elif lane.blocked_by is None and lane.turn == record.id:
        facts.add_row("", Text("has its key's turn", "dim"))
    elif lane.turn is not None:
        facts.add_row(
            "", plain(f"{many(lane.before, 'message')} of its key before it; {lane.turn} has the turn")
        )


def _facts() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _add_body(facts: Table, body: Body, payloads: Payloads) -> None:
    if body.provenance:
        facts.add_row("came by", plain(json.dumps(body.provenance, ensure_ascii=False)))
    if not payloads.shown:
        facts.add_row("payload", Text(f"{len(body.payload):,} bytes; --payload shows them", "dim"))
        return
    for name, value in body.headers:
        facts.add_row("header", plain(f"{name}: {value.decode(errors='backslashreplace')}"))
    facts.add_row("payload", lines(payloads.of(body).decode(errors="backslashreplace")))


def _attempts(attempts: list[Attempt]) -> Table:
    table = Table(title="attempts that failed", title_justify="left", title_style="bold")
    table.add_column("n", justify="right")
    table.add_column("at", no_wrap=True)
    table.add_column("error", overflow="fold")
    table.add_column("worker", overflow="fold")
    for attempt in attempts:
        error = plain(f"{attempt.error_type}: {attempt.error}", "red" if attempt.died else "")
        table.add_row(str(attempt.n), moment(attempt.at), error, plain(attempt.worker))
    return table


def _deeds(deeds: list[Deed]) -> Table:
    table = Table(title="done by hand", title_justify="left", title_style="bold")
    for name in ("at", "who", "command", "why", "result"):
        table.add_column(name, no_wrap=name == "at", overflow="fold")
    for each in deeds:
        table.add_row(
            moment(each.at), plain(each.who), plain(each.verb), plain(each.reason), plain(each.result)
        )
    return table


def _grave(grave: Grave, record: Record, payloads: Payloads) -> RenderableType:
    facts = _facts()
    facts.add_row("dead", plain(grave.reason, "red"))
    if grave.fingerprint != record.fingerprint and record.fingerprint:
        facts.add_row("", Text("another payload or type under the same id; the message above stands", "dim"))
        facts.add_row("type", plain(grave.type or "(none)"))
    facts.add_row("died", f"{moment(grave.died)}, after {many(grave.attempts, 'attempt')}")
    if grave.error_type:
        facts.add_row("error", plain(f"{grave.error_type}: {grave.error}"))
    if grave.traceback:
        facts.add_row("", lines(grave.traceback.rstrip(), "dim"))
    _add_body(facts, grave.body, payloads)
    return Padding(facts, (1, 0, 0, 2), expand=False)
