"""An exception as text that can be stored, and shown to people who may not see payloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary, walk_tb
from typing import NamedTuple

from oncebox.codec.columns import storable
from oncebox.errors import OnceboxError, Signal

MESSAGE_CHARS_MAX = 2_000
LOG_CHARS_MAX = 300
TRACEBACK_BYTES_MAX = 16 * 1024
_FRAMES_MAX = 60
_CHAIN_MAX = 8
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class ErrorText(NamedTuple):
    """A failure as it is stored: every part bounded, and text that every database takes."""

    type: str
    message: str
    traceback: str


def describe_error(error: BaseException) -> ErrorText:
    """The error's full type name, its own message, and its frames; never raises.

    The traceback has source lines and type names, of this error and of those that led to it, but
    neither local values nor their messages: those may quote a payload, and only what the handler
    itself chose to say in the final message is kept. Of a long traceback the end is kept.
    """
    try:
        message = _driver_message(error) or str(error)
    except Exception:
        message = "(its message can't be shown: __str__ failed)"
    shown = storable(message[: MESSAGE_CHARS_MAX * 2])[:MESSAGE_CHARS_MAX]
    return ErrorText(type_name(error), shown, _tail("".join(_frames(error))))


def _driver_message(error: BaseException) -> str | None:
    """What may be kept of a database driver's error: its text quotes the values it was given."""
    cause = getattr(error, "orig", None) or error
    sqlstate = getattr(cause, "sqlstate", None)
    if not isinstance(sqlstate, str) or sqlstate.startswith("42"):
        return (
            None  # not a driver's, or about the statement itself, which is the code's and not the payload's
        )
    about = getattr(cause, "diag", cause)
    parts = [
        f"{part} {value}" for part in ("constraint", "table", "column") if (value := _named(about, part))
    ]
    return ", ".join([f"SQLSTATE {sqlstate}", *parts])


def _named(about: object, part: str) -> str | None:
    value = getattr(about, f"{part}_name", None)
    return value if isinstance(value, str) else None


def safe_text(error: BaseException) -> str:
    """What a log may say of an error: its class, where it was raised, and its text where that can't quote a payload.

    That is so for oncebox's own errors, but not for what a handler raises to decide a message's fate; and of a
    database's errors, its code and names.
    """
    own = isinstance(error, OnceboxError) and not isinstance(error, Signal)
    said = (str(error) if own else _driver_message(error)) or ""
    frames = [
        frame
        for frame in walk_tb(error.__traceback__)
        if not frame[0].f_code.co_filename.startswith(_PACKAGE)
    ]
    # The last of the handler's own code, not of the libraries it called.
    ours = [frame for frame in frames if "site-packages" not in frame[0].f_code.co_filename] or frames
    where = f" at {Path(ours[-1][0].f_code.co_filename).name}:{ours[-1][1]}" if ours else ""
    text = f"{type(error).__name__}{where}{f': {said}' if said else ''}"
    return storable(text.replace("\n", " "))[:LOG_CHARS_MAX]


def type_name(error: BaseException) -> str:
    """`module.Class`, and the bare name for a builtin."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return storable(name)[:255]


def _frames(error: BaseException) -> Iterator[str]:
    """Oldest first, as Python prints a chain, without the messages."""
    for link in reversed(_chain(error)):
        yield "Traceback (most recent call last):\n"
        yield from _own(StackSummary.extract(walk_tb(link.__traceback__), capture_locals=False)).format()
        yield f"{type_name(link)}\n"


def _own(stack: StackSummary) -> StackSummary:
    """Without the leading frames of oncebox itself, as long as the user's follow; the end of a long one."""
    first = next((n for n, frame in enumerate(stack) if not frame.filename.startswith(_PACKAGE)), 0)
    return StackSummary.from_list(stack[first:][-_FRAMES_MAX:])


def _chain(error: BaseException) -> list[BaseException]:
    """The error, then what led to it: its causes, and the first failure inside a group."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < _CHAIN_MAX and not any(current is link for link in chain):
        chain.append(current)
        if isinstance(current, BaseExceptionGroup):
            current = current.exceptions[0]
        elif current.__cause__ is not None or current.__suppress_context__:
            current = current.__cause__
        else:
            current = current.__context__
    return chain


def _tail(text: str) -> str:
    kept = storable(text).encode()[-TRACEBACK_BYTES_MAX:]
    return kept.decode(errors="ignore")
