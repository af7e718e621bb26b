"""How messages stand in oncebox's own tables."""

from __future__ import annotations

from oncebox.core.outcomes import Reason
from oncebox.message import Message
from oncebox.testing.tables.state import State

NEVER = "never handled"
_STATES = {"0": "processed", "1": "unfinished", "2": "discarded", "3": "stale", "4": "suppressed"}


def end_of(state: State, consumer: str, message: Message) -> str:
    """The status a message has ended with, `waiting`, or `never handled`; why, if it is dead."""
    key = (consumer, message.source, message.id)
    for row in state["oncebox.dead"].rows:
        if row[:3] == key:
            return f"dead: {row[3]}"
    if key in state["oncebox.queue"].rows:
        return "waiting"
    for row in state["oncebox.ledger"].rows:
        if row[:3] == key:
            return _STATES.get(str(row[3]), str(row[3]))
    return NEVER


def parked(state: State) -> bool:
    """Whether an effect is left to a person, because nobody knows whether it happened."""
    return any(row[3] == Reason.UNKNOWN_EFFECT for row in state["oncebox.dead"].rows)
