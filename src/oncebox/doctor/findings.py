"""Findings, and all that there are: each code with how bad it is, why it matters, and what to do."""

from __future__ import annotations

import msgspec

from oncebox.doctor.kinds import DATABASE, ERROR, STANDING, WARNING, Kind, Severity


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found."""

    code: str
    severity: Severity
    subject: str
    """What it is about: `database`, a table, `consumer billing`."""
    what: str
    why: str
    do: str


def found(code: str, subject: str, what: str) -> Finding:
    """A finding of a code that is in the list."""
    kind = KINDS[code]
    return Finding(code=code, severity=kind.severity, subject=subject, what=what, why=kind.why, do=kind.do)


BROKERS = {
    "source-unreachable": Kind(
        ERROR, "Nothing is received.", "Check the broker and its URL; the text says what the client saw."
    ),
    "source-unusable": Kind(
        ERROR,
        "The broker is there, but not what the source needs; the app does not start.",
        "Do what the text says.",
    ),
    "sink-unreachable": Kind(
        ERROR,
        "What is published waits in the outbox, and nothing gets out.",
        "Check the broker and its URL; the text says what the client saw.",
    ),
    "sink-unusable": Kind(
        ERROR,
        "The broker is there, but not what the sink names: what is published waits in the outbox.",
        "Do what the text says.",
    ),
    "source-drops": Kind(
        ERROR,
        "The broker counts restarts and releases as deliveries; what is over the limit is gone, handled or not.",
        "Declare a dead-letter exchange or queue at the broker, or take the limit away: oncebox counts attempts "
        "itself, and keeps what fails among the dead.",
    ),
    "source-gives-up": Kind(
        WARNING,
        "The broker takes a message away before its consumer has made all its attempts; it then lies in the broker's "
        "dead-letter queue, and oncebox dead list does not know it.",
        "Raise the broker's limit well above retry.attempts, or lower the attempts.",
    ),
    "source-visibility": Kind(
        WARNING,
        "Work in hand is reported every 5 seconds; a broker that waits less than twice that delivers it again "
        "meanwhile.",
        "Set the visibility (ack wait) to 30 seconds or more.",
    ),
    "source-timeout": Kind(
        ERROR,
        "The broker takes the message away while the handler still may work, closes the channel or delivers it again, "
        "and so for ever.",
        'Lower timeout, or use mode="stored": there the message is acked when it is stored.',
    ),
    "watermark-strayed": Kind(
        ERROR,
        "The topic is not the one that its watermark was made for: nothing of these partitions is handled.",
        "Where the topic was deleted and made again: oncebox watermarks forget TOPIC --consumer NAME. Else give the "
        "consumer the cluster it had.",
    ),
    "source-volatile": Kind(
        WARNING,
        "What the broker loses was never delivered, and oncebox can't know of it.",
        "Set the broker up as the text says, where that matters.",
    ),
}  # fmt: skip

POLICIES = {
    "window-short": Kind(
        ERROR,
        "A message may come again after it was forgotten, and takes effect twice; the app does not start.",
        "Raise retention above the source's redelivery horizon, or shorten what the broker keeps.",
    ),
    "window-unbounded": Kind(
        WARNING,
        "The source may deliver a message again at any time, so its ledger is kept for ever and only grows.",
        "Name a window: retention=timedelta(days=…), above how late you want to recognise a duplicate.",
    ),
    "replay-effects": Kind(
        WARNING,
        "A replay would call the outside world again for what was called long ago.",
        'Set replay="suppress_effects" (or "forbid") for consumers with effects.',
    ),
    "replay-without-payload": Kind(
        WARNING,
        "A replay needs payloads, and this consumer keeps none of what is done: only an archive or a file can feed it.",
        'Set keep_payload="always", or replay="forbid".',
    ),
    "identity-unstable": Kind(
        ERROR,
        "The same message gets another id when it is delivered again, so every duplicate looks like a first.",
        "Name where the producer put its id: identity.field(…), identity.header(…), or a business key.",
    ),
    "identity-constant": Kind(
        ERROR,
        "All messages have one id: the first has its effect, and every other is taken for its duplicate or conflict.",
        "Name where the producer put its id: identity.field(…), identity.header(…), or a business key.",
    ),
    "identity-position": Kind(
        WARNING,
        "The place in the broker tells redeliveries apart, but not what a producer sent twice, or what was moved.",
        "Have the producer set an id, and name it; keep this where only transport duplicates matter.",
    ),
    "identity-content": Kind(
        WARNING,
        "Two messages that rightly say the same become one, and the second has no effect.",
        "Have the producer set an id, and name it.",
    ),
    "no-handler": Kind(
        WARNING,
        "What arrives is stored or refused, and never handled here.",
        "Register a handler: @consumer.handler(…), or take the consumer out of the app.",
    ),
    "batch-long": Kind(
        WARNING,
        "A batch holds its locks until its last handler is done, and one failure runs its neighbours again.",
        "Set batch=1 for handlers that take long, or give them a consumer of their own.",
    ),
    "lease-short": Kind(
        WARNING,
        "A pause of the process or the network longer than the lease has another worker take over, and this one's "
        "work is rolled back.",
        "Set lease to 30 seconds or more.",
    ),
    "lapse-short": Kind(
        ERROR,
        "A worker that misses a beat or two counts as dead, and its messages as having killed it.",
        "Set App(lapse_seconds=…) to at least three times heartbeat_seconds.",
    ),
    "observe-on": Kind(
        WARNING,
        "The consumer counts duplicates and conflicts, and suppresses none of them: each takes effect.",
        "When the counts are as you expect, take observe=True away.",
    ),
}  # fmt: skip

KINDS: dict[str, Kind] = {**DATABASE, **BROKERS, **POLICIES, **STANDING}
"""Every code there is."""
