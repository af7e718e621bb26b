"""Log lines of `oncebox run`, on standard error: for people, or one JSON object each.

Neither has payloads: tracebacks are given as frames and type names, without values.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from oncebox.cli.text import clean, one_line, redact
from oncebox.codec import describe_error

ABOUT = ("consumer", "message_id", "message_source", "message_type")
"""What a record says about the message it is about, where it is about one."""


class Level(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Plain(logging.Formatter):
    """`time level process message`, and the frames of an error below it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a message that contains line breaks can't forge a second one."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{at} {record.levelname:<7} [{record.process}] {one_line(record.getMessage())}"
        frames = _frames(record)
        return f"{line}\n{frames}" if frames else line


class Json(logging.Formatter):
    """One JSON object per line: at, level, logger, process, message; which message it is about; for an error its
    type and frames."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as one line of ASCII."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": one_line(record.getMessage()),
        }
        for name in ABOUT:
            if isinstance(value := getattr(record, name, None), str):
                entry[name] = one_line(value)
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = describe_error(record.exc_info[1]).type
            entry["traceback"] = _frames(record)
        return json.dumps(entry)


def _frames(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return clean(redact(describe_error(record.exc_info[1]).traceback), lines=True).rstrip()


def set_up(level: Level, *, as_json: bool) -> None:
    """Log to standard error. The app's own logging set-up, made when it is imported, may replace this."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if as_json else Plain())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Drivers and event loops are chatty at debug level, and may quote what they send.
    for noisy in ("asyncio", "psycopg", "asyncpg", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
