"""Watermarks as people see them: how far partitions are handled, and forgetting that for a topic made again."""

from __future__ import annotations

import msgspec

from oncebox import errors
from oncebox.core.audit import Act, Touched, audit
from oncebox.core.queries import Queries
from oncebox.core.steps import Begin, Call, Commit, Fetch, Op, Rollback
from oncebox.core.work import new_token

LIST_MAX = 10_000


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """How far one partition is handled."""

    consumer: str
    topic: str
    partition: int
    last: int
    """This offset and all before it are done, in the queue, or dead."""
    topic_id: str
    """The cluster's id of the topic; empty where it tells none."""
    age_seconds: float
    """Since it last moved."""


def watermarks(
    queries: Queries, consumer: str | None = None, topic: str | None = None
) -> Op[list[Watermark]]:
    """The marks, by consumer, topic and partition."""
    params = {"consumer": consumer, "topic": topic, "limit": LIST_MAX}
    rows = yield Fetch(Call(queries.watermark_list, params))
    return [
        Watermark(
            consumer=row[0], topic=row[1], partition=row[2], last=row[3], topic_id=row[4], age_seconds=float(row[5])
        )
        for row in rows
    ]  # fmt: skip


def forget(queries: Queries, consumer: str, topic: str, partition: int | None, act: Act) -> Op[list[int]]:
    """Have a topic, or one partition of it, start anew: whatever is read next is new. Returns the partitions.

    UsageError when nothing is known of it. What its messages did stays done: a topic that is still the same one
    is handled again from wherever its group reads.
    """
    token = new_token()
    try:
        yield Begin(token)
        params = {"consumer": consumer, "topic": topic, "partition": partition}
        rows = yield Fetch(Call(queries.watermark_forget, params))
        if not rows:
            which = topic if partition is None else f"{topic}[{partition}]"
            raise errors.UsageError(
                f"consumer {consumer!r} has no watermark for {which}; oncebox watermarks list shows those it has"
            )
        touched = [
            Touched(
                consumer=consumer, source=topic, id=f"{topic}:{row[0]}", result=f"forgotten, was {row[1]}"
            )
            for row in rows
        ]
        yield Commit(token, (audit(queries, act, touched),))
    except BaseException as error:
        if not isinstance(error, GeneratorExit):
            yield Rollback()
        raise
    return sorted(int(row[0]) for row in rows)
