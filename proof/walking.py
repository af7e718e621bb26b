"""Letting the state machine loose on a database, and telling how far it went."""

from __future__ import annotations

import traceback
import zlib
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from proof.bays import bay
from proof.properties import Machine
from proof.schedules.world import World

STEPS = 30


class Walked(msgspec.Struct):
    """How far it went."""

    engine: str
    steps: int
    violations: list[str]


def walk(engine: str, seed: str, examples: int) -> Walked:
    """On a database of this process's own."""
    return walk_on(bay().url(engine), seed, examples)


def walk_on(url: str, seed: str, examples: int, *, shrink: bool = True) -> Walked:
    """Let it do what it wants, so many times; what it finds is told as shortly as possible, or at once."""
    world = World(url)
    engine = world.database.dialect
    machine: Any = type("Machine", (Machine,), {"world": world, "steps": 0})
    _seeded(machine, seed)
    found: list[str] = []
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples, stateful_step_count=STEPS, deadline=None, database=None,
                suppress_health_check=list(HealthCheck), phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
            ),
        )  # fmt: skip
    except (Exception, HypothesisException) as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        found.append(f"{engine}, state machine: {error!r}\n{notes}\n{traceback.format_exc(limit=-3)}")
    finally:
        world.close()
    return Walked(engine, machine.steps, found)


def _seeded(machine: Any, text: str) -> None:
    seed(zlib.crc32(text.encode()))(machine)
