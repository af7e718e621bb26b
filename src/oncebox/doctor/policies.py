"""Words of policy that do not go together, and identities that are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from oncebox.app import App
from oncebox.brokers.contract import Delivery
from oncebox.consumer import Consumer
from oncebox.doctor.findings import Finding, found
from oncebox.errors import ConfigError
from oncebox.identity import Envelope, Resolver, by_content, by_position
from oncebox.runtime.sweeper import check_window, window_seconds

BATCH_SECONDS = 60.0
"""Handlers that may take longer are long ones."""
LEASE_SECONDS = 10.0
LAPSE_BEATS = 3


def check_policies(app: App) -> list[Finding]:
    """All consumers of an app. Brokers that know their horizon were asked before."""
    findings = [finding for consumer in app.consumers.values() for finding in _consumer(consumer)]
    if app.lapse_seconds < LAPSE_BEATS * app.heartbeat_seconds:
        text = f"heartbeat_seconds={app.heartbeat_seconds:g}, lapse_seconds={app.lapse_seconds:g}"
        findings.append(found("lapse-short", "app", text))
    return findings


def _consumer(consumer: Consumer) -> Iterator[Finding]:
    policy, handlers = consumer.policy, consumer.registry.all()
    subject = f"consumer {consumer.name}"
    yield from _window(consumer, subject)
    yield from _identity(consumer, subject)
    if not handlers:
        yield found("no-handler", subject, "it has no handler in this app")
    if policy.batch > 1 and policy.timeout_seconds > BATCH_SECONDS:
        text = f"batch={policy.batch}, and each handler may take {policy.timeout_seconds:g} s"
        yield found("batch-long", subject, text)
    leased = [handler for handler in handlers if handler.long or handler.effect is not None]
    if leased and policy.lease_seconds < LEASE_SECONDS:
        text = f"a lease of {policy.lease_seconds:g} s for {leased[0].name}"
        yield found("lease-short", subject, text)
    if policy.observe:
        yield found("observe-on", subject, "observe=True")
    effects = [handler.name for handler in handlers if handler.effect is not None]
    if effects and policy.replay == "rebuild":
        yield found("replay-effects", subject, f'replay="rebuild", and {effects[0]} calls the outside world')
    if policy.replay != "forbid" and policy.keep_payload != "always":
        text = f"replay={policy.replay!r}, and keep_payload={policy.keep_payload!r}"
        yield found("replay-without-payload", subject, text)


def _window(consumer: Consumer, subject: str) -> Iterator[Finding]:
    try:
        check_window(consumer)
    except ConfigError as error:
        yield found("window-short", subject, str(error))
    if consumer.source is not None and window_seconds(consumer.policy, consumer.source) is None:
        text = f"source {consumer.source.name} names no end, and neither does retention"
        yield found("window-unbounded", subject, text)


def _identity(consumer: Consumer, subject: str) -> Iterator[Finding]:
    resolver = consumer.intake.identity.id
    if resolver is None:
        return
    if resolver is by_content:
        yield found("identity-content", subject, "its id is a digest of what it says")
    elif resolver is by_position or getattr(resolver, "__name__", "") == "by_message_id":
        yield found("identity-position", subject, "its id is the broker's own, by place or delivery")
    else:
        yield from _tried(resolver, subject)


def _tried(resolver: Resolver, subject: str) -> Iterator[Finding]:
    """Show it one message twice, and another one. What it finds nothing in tells nothing."""
    name = getattr(resolver, "__name__", type(resolver).__name__)
    first, again, other = _id(resolver, 1, 1), _id(resolver, 1, 2), _id(resolver, 2, 1)
    if first is not None and again is not None and first != again:
        yield found("identity-unstable", subject, f"{name} gave two ids for two deliveries of one message")
    elif first is not None and first == other:
        yield found("identity-constant", subject, f"{name} gave one id for two different messages")


def _id(resolver: Resolver, number: int, delivery: int) -> object:
    where = {
        "topic": "doctor", "partition": 0, "offset": number, "stream": "doctor", "id": f"{number}-0",
        "delivery_tag": 10 * number + delivery, "message_id": f"m-{number}",
    }  # fmt: skip
    shown = Delivery(
        body=b'{"id": %d, "data": {"id": %d}}' % (number, number),
        headers=(("id", b"h-%d" % number), ("message-id", b"h-%d" % number)),
        properties={"message_id": f"m-{number}", "delivery_tag": 10 * number + delivery},
        provenance=where,
        deliveries=delivery,
        redelivered=delivery > 1,
        tag=10 * number + delivery,
    )
    with suppress(Exception):
        return resolver(Envelope(shown))
    return None
