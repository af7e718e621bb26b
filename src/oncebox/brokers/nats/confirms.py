"""Publishing with a confirmation of every message, all on their way at once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from oncebox.brokers.nats.connection import REPLY_SECONDS, Link, reason
from oncebox.brokers.nats.headers import Pairs
from oncebox.errors import BrokerError, BrokerUnavailable, QueueFull

Letter = tuple[str, bytes, Pairs]
"""Subject, body and headers."""


class _Refusal(msgspec.Struct):
    description: str = ""


class _Reply(msgspec.Struct):
    stream: str = ""
    error: _Refusal | None = None


async def confirm(link: Link, letters: Sequence[Letter]) -> list[BaseException | None]:
    """One entry per letter: None when a stream has it, also as a duplicate; else why it is not known to."""
    outcomes: list[BaseException | None] = [BrokerUnavailable("the server did not confirm in time")] * len(
        letters
    )
    left = set(range(len(letters)))
    done = asyncio.Event()
    inbox = link.new_inbox()

    async def hear(message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        outcomes[number] = _outcome(message, letters[number][0])
        left.discard(number)
        if not left:
            done.set()

    subscription: Subscription | None = None
    link.when_closed.add(done.set)
    try:
        subscription = await link.subscribe(f"{inbox}.*", cb=hear)
        for number, (subject, body, headers) in enumerate(letters):
            await link.publish(subject, body, reply=f"{inbox}.{number}", headers=headers)
        async with asyncio.timeout(REPLY_SECONDS):
            await done.wait()
    except TimeoutError:
        pass
    except (nats.errors.Error, OSError) as error:
        lost = BrokerUnavailable(f"the connection was lost: {reason(error)}")
        return [lost if number in left else outcome for number, outcome in enumerate(outcomes)]
    finally:
        link.when_closed.discard(done.set)
        if subscription is not None and link.is_connected:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
    return outcomes


def _outcome(message: Msg, subject: str) -> BaseException | None:
    if not message.data:
        return BrokerError(
            f"no stream takes subject {subject!r}; create one (nats stream add NAME --subjects '{subject}')"
        )
    try:
        reply = msgspec.json.decode(message.data, type=_Reply)
    except msgspec.MsgspecError:
        return BrokerError(f"subject {subject!r} was answered by something that is no stream")
    if reply.error is None:
        return None
    text = f"subject {subject!r}: {reply.error.description}"
    return QueueFull(text) if "maximum" in reply.error.description else BrokerError(text)
