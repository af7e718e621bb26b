"""What a queue is: declared by words, checked against them, and learned where they say nothing."""

from __future__ import annotations

import logging
import re
from typing import Any, Literal, get_args

import msgspec
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from oncebox.brokers.rabbitmq.connection import LOST, Link, answered, closed
from oncebox.errors import ConfigError

log = logging.getLogger("oncebox")

Kind = Literal["classic", "quorum"]

_QUESTIONS_MAX = 16
_DIFFERS = re.compile(r"inequivalent arg '([^']+)' for queue .*received .* but current is (.*)$", re.DOTALL)
_VALUE = re.compile(r"(?:the value )?'(.*?)'(?: of type '(\w+)')?$", re.DOTALL)
_DEFAULT_LIMIT_SINCE = (4, 0)
_DEFAULT_LIMIT = 20


class QueueWords(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of a queue; None leaves it open. `ConfigError` names the word that is wrong."""

    name: str
    create: bool = False
    kind: Kind | None = None
    dead_letter_exchange: str | None = None
    delivery_limit: int | None = None
    single_active_consumer: bool | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ConfigError(
                f"queue {self.name!r}: kind={self.kind!r}; it is {' or '.join(map(repr, get_args(Kind)))}"
            )
        if self.delivery_limit is not None and (self.kind == "classic" or self.delivery_limit < 1):
            raise ConfigError(
                f"queue {self.name!r}: delivery_limit={self.delivery_limit!r}; only quorum queues have one, above 0"
            )

    def arguments(self) -> dict[str, Any]:
        """For a declaration."""
        said = {
            "x-queue-type": self.kind or "quorum",
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-delivery-limit": self.delivery_limit,
            "x-single-active-consumer": self.single_active_consumer or None,
        }
        return {name: value for name, value in said.items() if value is not None}


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker says a queue is. Policies are not told to AMQP clients."""

    kind: str
    arguments: dict[str, Any]

    @property
    def single_active_consumer(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))


async def check_queue(link: Link, words: QueueWords) -> QueueFacts:
    """The queue as it is, once it is there and as was said. `ConfigError` with the next step, else."""
    await _find(link, words)
    facts = await _learn(link, words)
    said = {
        "kind": (words.kind, facts.kind),
        "dead_letter_exchange": (words.dead_letter_exchange, facts.arguments.get("x-dead-letter-exchange")),
        "delivery_limit": (words.delivery_limit, facts.arguments.get("x-delivery-limit")),
        "single_active_consumer": (words.single_active_consumer, facts.single_active_consumer),
    }
    for word, (wanted, found) in said.items():
        if wanted is not None and wanted != found:
            raise ConfigError(
                f"queue {words.name!r}: {word}={wanted!r} was said, but the queue was declared with {found!r}; say "
                "what it is, or delete it and let create=True declare it again"
            )
    _warn(link, words.name, facts)
    return facts


async def _find(link: Link, words: QueueWords) -> None:
    channel = await link.channel()
    try:
        async with answered():
            await channel.queue_declare(words.name, passive=True)
    except ChannelNotFoundEntity:
        if words.create:
            return await _declare(link, words)
        raise ConfigError(
            f"there is no queue {words.name!r} in vhost {link.vhost!r} of {link.where}: declare it where your "
            f"queues are declared, or let oncebox do it with queue({words.name!r}, create=True)"
        ) from None
    except ChannelLockedResource:
        raise ConfigError(
            f"queue {words.name!r} is exclusive to another connection: it can't be shared"
        ) from None
    except ChannelAccessRefused:
        raise _refused(link, words.name, "see") from None
    except LOST as error:
        raise link.unavailable(error) from None
    finally:
        await closed(channel)
    return None


async def _declare(link: Link, words: QueueWords) -> None:
    channel = await link.channel()
    try:
        async with answered():
            await channel.queue_declare(words.name, durable=True, arguments=words.arguments())
    except ChannelAccessRefused:
        raise _refused(link, words.name, "create") from None
    except ChannelPreconditionFailed as error:
        raise ConfigError(f"queue {words.name!r} can't be declared: {error.args[0]}") from None
    except LOST as error:
        raise link.unavailable(error) from None
    finally:
        await closed(channel)


async def _learn(link: Link, words: QueueWords) -> QueueFacts:
    """Declare the queue as we think it is; the broker names what differs, one thing at a time."""
    arguments = words.arguments()
    flags = {"durable": True, "auto_delete": False}
    for _ in range(_QUESTIONS_MAX):
        channel = await link.channel()
        try:
            async with answered():
                await channel.queue_declare(
                    words.name,
                    durable=flags["durable"],
                    auto_delete=flags["auto_delete"],
                    arguments=arguments,
                )
            break
        except ChannelPreconditionFailed as error:
            if not _corrected(flags, arguments, str(error.args[0])):
                break
        except ChannelAccessRefused:
            # Allowed to consume, not to declare: what was said has to do.
            break
        except LOST as error:
            raise link.unavailable(error) from None
        finally:
            await closed(channel)
    return QueueFacts(kind=arguments.get("x-queue-type", "classic"), arguments=arguments)


def _corrected(flags: dict[str, bool], arguments: dict[str, Any], text: str) -> bool:
    """Take over what the broker says it is; False when it can't be made out."""
    differs = _DIFFERS.search(text)
    if differs is None:
        return False
    name, current = differs.groups()
    if name in flags:
        flags[name] = current.strip("'") == "true"
        return True
    if current == "none":
        return arguments.pop(name, None) is not None
    value = _VALUE.match(current)
    if value is None:
        return False
    said, kind = value.groups()
    if kind in ("longstr", None):
        arguments[name] = said
    elif kind == "bool":
        arguments[name] = said == "true"
    elif said.lstrip("-").isdigit():
        arguments[name] = int(said)
    else:
        return False
    return True


def delivery_limit(link: Link, facts: QueueFacts) -> int | None:
    """After how many deliveries RabbitMQ gives a message up, as far as the queue's own arguments tell."""
    limit = facts.arguments.get("x-delivery-limit") if facts.kind == "quorum" else None
    if limit is None and facts.kind == "quorum" and link.version >= _DEFAULT_LIMIT_SINCE:
        limit = _DEFAULT_LIMIT
    return limit


def _warn(link: Link, name: str, facts: QueueFacts) -> None:
    limit = delivery_limit(link, facts)
    if limit is not None and "x-dead-letter-exchange" not in facts.arguments:
        log.warning(
            "queue %s: RabbitMQ drops a message after %s deliveries, and no dead-letter exchange is declared to "
            "catch it; declare one (dead_letter_exchange=…), or set one by policy",
            name,
            limit,
        )


def _refused(link: Link, name: str, what: str) -> ConfigError:
    return ConfigError(f"user {link.user!r} may not {what} queue {name!r} in vhost {link.vhost!r}")
