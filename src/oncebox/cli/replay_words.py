"""Which messages a replay means, from what was typed."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from oncebox.cli.text import clean, seconds_of
from oncebox.core.replay_terms import Chosen
from oncebox.errors import UsageError
from oncebox.message import check_id


def chosen_by(
    ids: list[str] | None, kind: str | None, key: str | None, since: str | None, until: str | None
) -> Chosen:
    """Which messages are meant. UsageError for what can't be read."""
    for each in ids or ():
        check_id(each)
    return Chosen(
        ids=tuple(dict.fromkeys(ids or ())), type=kind, key=key, since=moment_of(since, "--since"),
        until=moment_of(until, "--until"),
    )  # fmt: skip


def moment_of(said: str | None, option: str) -> float | None:
    """A time as seconds since 1970: a date, a time (UTC without a zone), or how long ago."""
    if said is None:
        return None
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        try:
            return time.time() - (seconds_of(said, option) or 0.0)
        except UsageError:
            raise UsageError(
                f"{option} {clean(said)!r}: a date, a time, or how long ago: 2026-01-31, 2026-01-31T12:00, 6h, 2d"
            ) from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def ago(**said: str | None) -> tuple[str, ...]:
    """Which of these moments are so long ago from now."""
    return tuple(word for word, text in said.items() if text is not None and text.strip()[-1:] in "smhd")


def utc(seconds: float | None) -> datetime | None:
    """Seconds since 1970 as a time."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
