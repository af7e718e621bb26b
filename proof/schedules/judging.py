"""What the checker says about the end of a schedule."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.crash.checker import Key, Seen, Tables, violations
from tests.crash.effects import AGAIN, tables

if TYPE_CHECKING:
    from proof.schedules.world import World


def judge(world: World) -> list[str]:
    """Everything that is wrong, in words."""
    found = tables(world.reader, world.name)
    called = {key for key, _ in world.calls}
    # Calls to the outside are at least once; what matters is that a done one was made, with one key.
    made = sorted(called & {row.key for row in found.ledger})
    # Those of replays are counted by whoever replays.
    own = [key for key in found.effects if key[1] != AGAIN]
    found = dataclasses.replace(found, effects=[*own, *made])
    seen = Seen(sent=world.sent, acked=world.acked, deaths=99)
    if world.old and not any(row.key == world.old for row in found.ledger):
        seen, found = _without(world.old, seen, found)
    words = violations(seen, found)
    if len({key for _, key in world.calls}) != len(called):
        words.append(f"one message was called with several idempotency keys: {world.calls}")
    if world.sends:
        words += _published_wrongly(world, {key[2] for key in found.effects})
    if world.ordering:
        words += _out_of_order(world, found)
    return words


def _without(key: Key, seen: Seen, found: Tables) -> tuple[Seen, Tables]:
    """The evidence without what was past its window and is forgotten; it took effect before."""
    effects = [each for each in found.effects if each != key]
    if len(effects) != len(found.effects) - 1:
        return seen, found
    return (
        dataclasses.replace(
            seen,
            sent=[each for each in seen.sent if each.key != key],
            acked=[a for a in seen.acked if a != key],
        ),
        dataclasses.replace(found, effects=effects),
    )


def _published_wrongly(world: World, done: set[str]) -> list[str]:
    left = world.reader.execute(f"SELECT id FROM {world.prefix}outbox").fetchall()
    out = {id_.split("/")[1] for id_ in [*world.published, *(row[0] for row in left)]}
    return [f"I4: took effect {sorted(done)}, published {sorted(out)}"] if out != done else []


def _out_of_order(world: World, found: Tables) -> list[str]:
    """Effects come in the order in which their messages were stored; by version, in that order."""
    place = {row.key: row.seq or 0 for row in found.ledger}
    wanted = sorted(found.effects, key=lambda key: key[2] if world.ordering == "sequence" else place[key])
    if list(found.effects) == wanted:
        return []
    return [
        f"I7: took effect in the order {[key[2] for key in found.effects]}, not {[key[2] for key in wanted]}"
    ]
