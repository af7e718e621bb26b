"""What brokers do with messages, against what consumers do with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from oncebox.brokers.contract import Sink, SourceFacts
from oncebox.consumer import Consumer
from oncebox.core.watermark import Watermark
from oncebox.doctor.findings import Finding, found
from oncebox.errors import BrokerError, ConfigError
from oncebox.runtime.feed import EXTEND_EVERY_SECONDS

LOOK_SECONDS = 30.0
"""The longest a broker is waited for."""


async def check_brokers(consumers: Iterable[Consumer], marks: Sequence[Watermark] = ()) -> list[Finding]:
    """Ask each source's broker, without subscribing and without changing anything; of watermarks, whether the topics
    are still those they were made for."""
    findings: list[Finding] = []
    with _quiet():
        for consumer in consumers:
            # A source of somebody else's, and one in this process, has nothing to ask.
            look = getattr(consumer.source, "look", None)
            if look is not None:
                findings += await _check(consumer, look)
            own = [mark for mark in marks if mark.consumer == consumer.name]
            if own and getattr(consumer.source, "watermarked", False):
                findings += await _strayed(consumer, own)
    return findings


async def check_sinks(sinks: Iterable[tuple[str, Sink]]) -> list[Finding]:
    """Open each sink as the relay would, which sees whether what it names is there, and close it; publishes nothing.
    One that would create what is missing is left alone."""
    findings: list[Finding] = []
    with _quiet():
        for sink in {id(sink): sink for _, sink in sinks}.values():
            if not getattr(sink, "creates", False):
                findings += await _open(sink)
    return findings


async def _open(sink: Sink) -> list[Finding]:
    subject = f"sink {sink.name}"
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await sink.open()
    except ConfigError as error:
        return [found("sink-unusable", subject, str(error))]
    except (BrokerError, TimeoutError) as error:
        return [found("sink-unreachable", subject, str(error) or f"no answer within {LOOK_SECONDS:g} s")]
    await sink.close()
    return []


async def _strayed(consumer: Consumer, marks: Sequence[Watermark]) -> list[Finding]:
    source: Any = consumer.source
    asked = [(mark.topic, mark.partition, mark.last, mark.topic_id) for mark in marks]
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            why = await source.strayed(asked)
    except (BrokerError, TimeoutError):
        return []  # told already: it can't be reached
    subject = f"consumer {consumer.name}, source {source.name}"
    return [found("watermark-strayed", subject, "; ".join(why))] if why else []


async def _check(consumer: Consumer, look: Any) -> list[Finding]:
    assert consumer.source is not None
    subject = f"consumer {consumer.name}, source {consumer.source.name}"
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            facts: SourceFacts = await look()
    except ConfigError as error:
        return [found("source-unusable", subject, str(error))]
    except (BrokerError, TimeoutError) as error:
        return [found("source-unreachable", subject, str(error) or f"no answer within {LOOK_SECONDS:g} s")]
    return list(judged(consumer, facts, subject))


def judged(consumer: Consumer, facts: SourceFacts, subject: str) -> Iterator[Finding]:
    """What a broker does, against this consumer's policy."""
    policy = consumer.policy
    limit, attempts = facts.deliveries_max, policy.retry.attempts
    inline = policy.mode == "inline"
    if limit is not None and facts.dead_letter is None:
        text = f"the broker drops a message after {limit} deliveries, and nothing catches it"
        yield found("source-drops", subject, text)
    if limit is not None and inline and limit <= attempts:
        text = (
            f"the broker gives a message up after {limit} deliveries; the consumer makes {attempts} attempts"
        )
        yield found("source-gives-up", subject, text)
    visible = facts.visibility_seconds
    if visible is not None and visible < 2 * EXTEND_EVERY_SECONDS:
        text = f"the broker waits {visible:g} s for a sign of life, then delivers again"
        yield found("source-visibility", subject, text)
    longest = facts.answer_seconds_max
    if inline and longest is not None and policy.timeout_seconds > longest:
        text = f"a handler may take {policy.timeout_seconds:g} s, the broker waits {longest:g} s at most"
        yield found("source-timeout", subject, text)
    for why in facts.volatile:
        yield found("source-volatile", subject, f"the broker {why}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Sources log what they find when they are opened; here it is told as findings."""
    log = logging.getLogger("oncebox")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
