"""Into the archive before anything is deleted, and back from there.

Nothing is locked while parts are written: what is past its window is looked at, written, verified, and only then
found again under locks and deleted, if it is still the row that was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from oncebox import errors
from oncebox.core.archived import Archived
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.queries import Queries
from oncebox.core.steps import Archive, Begin, Call, Commit, Execute, Fetch, Op, Rollback
from oncebox.core.work import new_token

if TYPE_CHECKING:
    from oncebox.core.sweep import Row

PART_ROWS = 50_000
PART_BYTES = 32 * 1024 * 1024
"""What a part holds at most; payloads are read from the database a part at a time."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Key = tuple[str, str, str]


def key_of(row: Row) -> Key:
    return (row.consumer, row.source, row.id)


def archive_rows(
    queries: Queries, rows: Sequence[Row], failed: dict[str, errors.ArchiveError]
) -> Op[dict[Key, Row]]:
    """Write rows to their consumers' archives. Returns those that are verified to be there.

    A consumer whose archive fails is left in `failed`; the others go on.
    """
    safe: dict[Key, Row] = {}
    ordered = sorted(rows, key=lambda row: (row.consumer, _moment(row.received), row.source, row.id))
    for (consumer, _), group in groupby(
        ordered, key=lambda row: (row.consumer, _moment(row.received).date())
    ):
        if consumer in failed:
            continue
        try:
            yield from _archive_day(queries, list(group), safe)
        except errors.ArchiveError as error:
            failed[consumer] = error
    return safe


def _archive_day(queries: Queries, rows: list[Row], safe: dict[Key, Row]) -> Op[None]:
    sizes = yield Fetch(Call(queries.archive_sizes, {"rows": _keys(rows)}))
    bytes_of: Counter[Any] = Counter()
    for *key, size in sizes:
        bytes_of[tuple(key)] += int(size)
    for chunk in _parts(rows, bytes_of):
        extras = yield Fetch(Call(queries.archive_extras, {"rows": _keys(chunk)}))
        found = {tuple(row[:3]): tuple(row[3:]) for row in extras}
        yield Archive(tuple(_archived(row, found.get(key_of(row))) for row in chunk))
        safe.update((key_of(row), row) for row in chunk)


def _parts(rows: list[Row], sizes: Mapping[Any, int]) -> Iterator[list[Row]]:
    """Rows in their order, no more to a part than a process should hold."""
    part: list[Row] = []
    total = 0
    for row in rows:
        size = sizes.get(key_of(row), 0)
        if part and (len(part) >= PART_ROWS or total + size > PART_BYTES):
            yield part
            part, total = [], 0
        part.append(row)
        total += size
    if part:
        yield part


def _archived(row: Row, extra: tuple[Any, ...] | None) -> Archived:
    result, place, key, payload, headers, content_type, provenance = extra or (None,) * 7
    return Archived(
        consumer=row.consumer,
        source=row.source,
        id=row.id,
        type=row.type,
        fingerprint=row.fingerprint,
        received=_moment(row.received),
        finished=None if row.finished is None else _moment(row.finished),
        state=row.state,
        result=None if result is None else bytes(result),
        place=place,
        key=key,
        payload=None if payload is None else bytes(payload),
        headers=bytes(headers or b""),
        content_type=content_type or "",
        provenance=provenance or "",
    )


def restore(queries: Queries, rows: Sequence[Archived], act: Act) -> Op[list[Key]]:
    """Put rows back, so that what comes late is known again; for a whole window, counted from now.

    In one transaction with their audit rows. What the ledger knows already stays as it is. Returns what was new.
    """
    by_key = {(row.consumer, row.source, row.id): row for row in rows}
    token = new_token()
    try:
        yield Begin(token)
        ledger = [_ledger(by_key[key]) for key in sorted(by_key)]
        inserted = yield Fetch(Call(queries.archive_restore, {"rows": ledger}))
        new: list[Key] = [(str(row[0]), str(row[1]), str(row[2])) for row in inserted]
        if not new:
            yield Rollback()
            return []
        found = [by_key[key] for key in sorted(new)]
        results = [{**_key(row), "body": row.result} for row in found if row.result is not None]
        kept = [_kept(row) for row in found if row.payload is not None]
        calls = [Call(queries.archive_restore_results, {"rows": results})] if results else []
        calls += [Call(queries.archive_restore_kept, {"rows": kept})] if kept else []
        if calls:
            yield Execute(tuple(calls))
        touched = [Touched(consumer=c, source=s, id=i, result="known again") for c, s, i in sorted(new)]
        yield Commit(token, (audit(queries, act, touched),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return new


def unknown(queries: Queries, rows: Sequence[Archived]) -> Op[int]:
    """How many of these the ledger does not know: what `restore` would put back."""
    keys = [_key(row) for row in rows]
    known = yield Fetch(Call(queries.archive_known, {"rows": keys}))
    return len({tuple(key.values()) for key in keys}) - len({tuple(row) for row in known})


def _keys(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"consumer": row.consumer, "source": row.source, "message_id": row.id} for row in rows]


def _key(row: Archived) -> dict[str, Any]:
    return {"consumer": row.consumer, "source": row.source, "message_id": row.id}


def _ledger(row: Archived) -> dict[str, Any]:
    received = (row.received - _EPOCH) // _MICROSECOND
    words = {"type": row.type, "fingerprint": row.fingerprint, "received": received, "state": row.state}
    return {**_key(row), **words}


def _kept(row: Archived) -> dict[str, Any]:
    return {
        **_key(row),
        "place": row.place,
        "key": row.key,
        "payload": row.payload,
        "headers": row.headers,
        "content_type": row.content_type,
        "provenance": row.provenance,
    }


def microseconds(value: Any) -> int:
    """A time as the database gives it, since 1970."""
    return (_moment(value) - _EPOCH) // _MICROSECOND


def _moment(value: Any) -> datetime:
    """A time as the database gives it: PostgreSQL a datetime, SQLite microseconds."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return _EPOCH + int(value) * _MICROSECOND
