"""Bringing the schema up to date: one transaction per version, under a lock, recorded with it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox import errors
from oncebox.core.queries import Query
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback, Script
from oncebox.core.work import new_token


class Plan(msgspec.Struct, frozen=True):
    """What an engine knows about its schema: how to lock, what to run for each version."""

    lock: str
    preamble: tuple[str, ...]
    current: Query
    session: Query | None
    """Asks how the role commits by default, whether its search path leads to our tables, and its name."""
    versions: tuple[tuple[int, str], ...]
    """(version, statements that apply and record it), ascending."""


def migrate(plan: Plan) -> Op[list[int]]:
    """Apply what is missing and return the versions applied. Safe to run from many machines at once,
    and to run again after a crash at any point."""
    applied: list[int] = []
    try:
        # Most starts find everything in place: looking needs no lock, and must not wait for a writer.
        known = set((yield from _done(plan)))
    except errors.SchemaMissing:
        known = set()
    for version, text in plan.versions:
        if version in known:
            continue
        token = new_token()
        try:
            yield Begin(token)
            if plan.lock:
                yield Script(plan.lock)
            for statement in plan.preamble:
                yield Script(statement)
            done = yield from _done(plan)
            if version in done:
                yield Rollback()
                continue
            yield Script(text)
            yield Commit(token)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                yield Rollback()
            raise
        applied.append(version)
    return applied


class Found(msgspec.Struct, frozen=True):
    """What a database is like."""

    version: int
    durability: str = "on"
    exposed: bool = False
    """Unqualified table names may mean oncebox's tables."""
    role: str = ""


def inspect(plan: Plan) -> Op[Found]:
    """The newest version that is applied and what the session is like; SchemaMissing without tables."""
    version = max((yield from _done(plan)), default=0)
    if plan.session is None:
        return Found(version)
    rows = yield Fetch(Call(plan.session, {}))
    return Found(version, *rows[0])


def _done(plan: Plan) -> Op[Sequence[int]]:
    rows = yield Fetch(Call(plan.current, {}))
    return [row[0] for row in rows]
