"""What happens in a run, decided before it starts: payments, duplicates and kills, all from one seed.

Both runs get the same schedule. A kill is due at a number of acks, which both runs reach, and not at a
time of day, which a faster run would have passed.
"""

from __future__ import annotations

import random

import msgspec

MESSAGE_TYPE = "payment.captured"
WORKERS = 2
"""Processes at work at a time: one goes on while the other is being replaced."""
KILL_DELAY_SECONDS_MAX = 0.01
"""A few times what one payment takes, so that kills fall anywhere in its handling."""
KILLS_UNTIL = 0.9
"""Kills are due within this part of the acks, so that something is left to be cut off."""


class PaymentCaptured(msgspec.Struct, frozen=True):
    """What the demo's messages say."""

    id: str
    account: int
    cents: int

    @property
    def row(self) -> tuple[str, int, int]:
        """Its charge in the table."""
        return self.id, self.account, self.cents


class Kill(msgspec.Struct, frozen=True):
    """Kill the worker in `slot` (or the next that is at work) once so many deliveries are acked."""

    after_acks: int
    slot: int
    delay_seconds: float


class Schedule(msgspec.Struct, frozen=True):
    """One run's course. `order` is what the broker is given: indices into `payments`, some twice."""

    seed: int
    payments: tuple[PaymentCaptured, ...]
    order: tuple[int, ...]
    kills: tuple[Kill, ...]

    @property
    def sent_again(self) -> frozenset[str]:
        """Ids of the payments that the producer sends more than once."""
        seen: set[int] = set()
        again: set[int] = set()
        for index in self.order:
            (again if index in seen else seen).add(index)
        return frozenset(self.payments[index].id for index in again)


def plan(messages: int, duplicates: int, kills: int, seed: int) -> Schedule:
    """The schedule for these figures; the same for the same arguments."""
    chance = random.Random(seed)
    payments = tuple(
        PaymentCaptured(f"pay-{seed}-{number}", chance.randrange(1, 1000), chance.randrange(100, 50_000))
        for number in range(1, messages + 1)
    )
    # A producer that was not sure sends again: at once, so that two workers have it at a time, or later.
    copies = [chance.randrange(messages) for _ in range(duplicates)]
    places = [(float(index), index) for index in range(messages)]
    for index in copies:
        place = index + 0.5 if chance.random() < 0.5 else chance.uniform(index, messages)
        places.append((place, index))
    order = tuple(index for _, index in sorted(places))
    last = max(1, int(len(order) * KILLS_UNTIL))
    moments = sorted(chance.randrange(last) for _ in range(kills))
    return Schedule(
        seed=seed,
        payments=payments,
        order=order,
        kills=tuple(
            Kill(moment, chance.randrange(WORKERS), chance.uniform(0.0, KILL_DELAY_SECONDS_MAX))
            for moment in moments
        ),
    )
