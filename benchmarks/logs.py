"""What oncebox logs while it is measured: kept apart, counted, and shown if it was not expected."""

from __future__ import annotations

import logging
from collections import Counter


class Heard(logging.Handler):
    """Counts lines by their text before formatting; dead messages are what some runs are about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if "is dead" not in str(record.msg):
            self.counts[f"{record.levelname} {record.getMessage()[:150]}"] += 1


def listen() -> Heard:
    """Put a listener in the place of the log."""
    heard = Heard()
    log = logging.getLogger("oncebox")
    log.addHandler(heard)
    log.propagate = False
    return heard
