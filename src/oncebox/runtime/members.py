"""What the runtime knows of a consumer, and what it makes of its policy."""

from __future__ import annotations

from typing import Protocol

from oncebox.brokers.contract import Source
from oncebox.core.work import Work
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.policy import Policy
from oncebox.runtime.intake import Intake
from oncebox.runtime.registry import Registry


class Member(Protocol):
    """What the runtime needs to know of a consumer."""

    name: str
    policy: Policy
    registry: Registry
    intake: Intake
    source: Source | None

    def work(self, worker: str, slot: int) -> Work: ...


def connection_settings(policy: Policy) -> Settings:
    """Bounds that free a vanished host's locks a little after its handler should have ended."""
    return Settings(
        lock_timeout_seconds=policy.lock_timeout_seconds,
        idle_timeout_seconds=policy.timeout_seconds * 1.5 + 1.0,
        handlers=True,
    )


def concurrency(member: Member, database: Database) -> int:
    """Workers for a consumer in this process."""
    return member.policy.concurrency or (1 if database.dialect == "sqlite" else 4)


def prefetch(policy: Policy, workers: int) -> int:
    """Deliveries to have out at a time: enough for a full batch in work and one at hand, and for workers to go on
    while some are being answered."""
    return max(
        2 * policy.batch * workers,
        32 * workers,
        200 if policy.durability == "group" else 0,
        1000 if policy.mode == "stored" else 0,
    )
