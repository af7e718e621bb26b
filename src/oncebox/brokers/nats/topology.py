"""What a source or a sink needs on the server: found, checked, or made when asked to."""

from __future__ import annotations

import logging
from typing import Any

import nats.errors
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from oncebox.brokers.nats.connection import reason
from oncebox.errors import BrokerUnavailable, ConfigError

log = logging.getLogger("oncebox")

VISIBILITY_SECONDS = 30.0
SHORT_VISIBILITY_SECONDS = 10.0
"""Working on a message is reported every 5 s: a consumer that waits less than this delivers again meanwhile."""
FOREVER = -1


async def ask(where: str, question: Any) -> Any:
    """A question to JetStream's API. `BrokerUnavailable` when nobody answers, `ConfigError` when it is off."""
    try:
        return await question
    except NotFoundError:
        raise
    except ServiceUnavailableError as error:
        raise ConfigError(f"{where} has no JetStream; start nats-server with -js, or enable it") from error
    except APIError as error:
        raise ConfigError(f"{where}: JetStream says no: {error.description}") from error
    except (nats.errors.Error, OSError) as error:
        raise BrokerUnavailable(f"{where} did not answer: {reason(error)}") from error


async def find_stream(
    js: JetStreamContext, where: str, name: str, subject: str | None, create: bool
) -> api.StreamConfig:
    """The stream's configuration. `ConfigError` with how to make it when it is missing and not `create`."""
    try:
        info = await ask(where, js.stream_info(name))
    except NotFoundError:
        if not create:
            raise ConfigError(
                f"stream {name!r} does not exist on {where}; create it "
                f"(nats stream add {name} --subjects '{subject or name}') or pass create=True"
            ) from None
        info = await ask(where, js.add_stream(name=name, subjects=[subject or name], storage="file"))
    return info.config  # type: ignore[no-any-return]


async def find_consumer(
    js: JetStreamContext,
    where: str,
    stream: str,
    name: str,
    *,
    subject: str | None,
    visibility_seconds: float | None,
    create: bool,
) -> api.ConsumerConfig:
    """The durable pull consumer's configuration, checked for what would lose or double messages.

    `ConfigError` when it is missing and not `create`, or can't be used; a warning for what is risky.
    """
    try:
        info = await ask(where, js.consumer_info(stream, name))
    except NotFoundError:
        if not create:
            raise ConfigError(
                f"consumer {name!r} of stream {stream!r} does not exist on {where}; create it "
                f"(nats consumer add {stream} {name} --pull --ack explicit --max-deliver=-1) or pass create=True"
            ) from None
        wanted = api.ConsumerConfig(
            durable_name=name,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=visibility_seconds or VISIBILITY_SECONDS,
            max_deliver=FOREVER,
            filter_subject=subject,
        )
        info = await ask(where, js.add_consumer(stream, wanted))
    config: api.ConsumerConfig = info.config
    _check(config, f"consumer {name!r} of stream {stream!r}", subject, visibility_seconds)
    return config


def visibility_of(config: api.ConsumerConfig) -> float:
    """How long a delivery may go unanswered, at least."""
    waits = [*(config.backoff or ()), *([config.ack_wait] if config.ack_wait else ())]
    return min(waits, default=VISIBILITY_SECONDS)


def _check(config: api.ConsumerConfig, what: str, subject: str | None, visibility: float | None) -> None:
    if config.deliver_subject:
        raise ConfigError(f"{what} is a push consumer; oncebox pulls: create one without a deliver subject")
    if config.ack_policy != api.AckPolicy.EXPLICIT:
        raise ConfigError(
            f"{what} has ack policy {config.ack_policy!s}, which acks what was not handled; it must be explicit"
        )
    if subject is not None:
        filters = config.filter_subjects or [config.filter_subject or ""]
        if filters not in ([subject], [""]):
            raise ConfigError(f"{what} takes {', '.join(filters)}, but subject={subject!r} was asked for")
    waits = visibility_of(config)
    if visibility is not None and abs(waits - visibility) > 1e-3:
        raise ConfigError(
            f"{what} waits {waits:g} s for an ack, but visibility_seconds={visibility:g}; "
            "leave the word out, or change the consumer (nats consumer edit --wait)"
        )
    if config.max_deliver is not None and config.max_deliver > 0:
        log.warning(
            "%s gives a message up after %d deliveries, handled or not (max_deliver); set it to -1: oncebox "
            "counts attempts, and keeps what fails among the dead",
            what,
            config.max_deliver,
        )
    if waits < SHORT_VISIBILITY_SECONDS:
        log.warning(
            "%s waits only %g s for an ack; what takes longer is delivered again meanwhile: set it to %g s or more",
            what,
            waits,
            SHORT_VISIBILITY_SECONDS,
        )
