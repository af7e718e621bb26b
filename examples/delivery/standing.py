"""Why nothing moves any more: what waits in each service, for whom or for what. For the logs of a failed run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

QUESTIONS = {
    "outbox": "SELECT state, attempts, error, count(*), min(due) FROM {p}outbox GROUP BY state, attempts, error",
    "queue": "SELECT type, attempts, deaths, token IS NOT NULL, count(*), min(due) FROM {p}queue "
    "GROUP BY type, attempts, deaths, token IS NOT NULL",
    "dead": "SELECT reason, error_type, count(*) FROM {p}dead GROUP BY reason, error_type",
    "effects": "SELECT state, calls, count(*) FROM {p}effect WHERE state <> 'done' GROUP BY state, calls",
    "workers": "SELECT id, heartbeat FROM {p}worker",
    "in hand": "SELECT worker, slot, seqs, message_id FROM {p}hand",
    "relays": "SELECT relay, count(*), min(until) FROM {p}slot GROUP BY relay",
    "now": "SELECT CURRENT_TIMESTAMP",
}


def standing(rows: Callable[[str, str], list[Any]], services: tuple[str, ...]) -> str:
    """One line for each question and service; a database that does not answer says so."""
    lines = []
    for service in services:
        for name, text in QUESTIONS.items():
            try:
                said = [tuple(str(value) for value in row) for row in rows(service, text)]
            except Exception as error:
                said = [(type(error).__name__, str(error).splitlines()[0])]
            lines.append(f"{service}: {name}: {said}")
    return "\n".join(lines)
