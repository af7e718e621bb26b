"""Subjects as a sink: published into whichever stream takes them, each message confirmed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nats.js.errors import NotFoundError

from oncebox.brokers.destination import topic_of
from oncebox.brokers.nats.confirms import Letter, confirm
from oncebox.brokers.nats.connection import Connection
from oncebox.brokers.nats.headers import outgoing
from oncebox.brokers.nats.topology import ask, find_stream
from oncebox.errors import BrokerUnavailable, ConfigError, MessageError
from oncebox.message import Message

_WORD = re.compile(r"\{(\w*)\}")
_WORDS = ("type", "key", "source")
_UNFIT = re.compile(r"[^\w.-]|^\.|\.$|\.(?=\.)", re.ASCII)
"""What a subject can't hold, or must not: spaces, wildcards, empty parts."""


class NatsSubject:
    """Publishes to one subject, or to one made from each message: `events.{type}`."""

    def __init__(self, connection: Connection, subject: str, *, stream: str | None, create: bool) -> None:
        for word in _WORD.findall(subject):
            if word not in _WORDS:
                raise ConfigError(f"subject {subject!r}: {{{word}}} is not one of {', '.join(_WORDS)}")
        if not subject or re.search(r"[\s*>]", subject):
            raise ConfigError(f"subject {subject!r}: publish to a subject without spaces and wildcards")
        if create and stream is None:
            raise ConfigError(f"subject {subject!r}: create=True needs the stream's name: stream='EVENTS'")
        self.name = subject
        self._connection = connection
        self._stream = stream
        self.creates = create

    async def open(self) -> None:
        """Connect, and check that a stream takes the subject; `ConfigError` with how to make one."""
        link = await self._connection.join(self)
        try:
            js, where, pattern = self._connection.jetstream(link), self._connection.where, self._pattern()
            if self._stream is not None:
                await find_stream(js, where, self._stream, pattern, self.creates)
            try:
                found = await ask(where, js.find_stream_name_by_subject(pattern))
            except NotFoundError:
                raise ConfigError(
                    f"no stream on {where} takes subject {pattern!r}; create one "
                    f"(nats stream add NAME --subjects '{pattern}') or pass stream='NAME', create=True"
                ) from None
            if self._stream is not None and found != self._stream:
                raise ConfigError(f"subject {pattern!r} goes to stream {found!r}, not to {self._stream!r}")
        except BaseException:
            await self._connection.leave(self)
            raise

    async def close(self) -> None:
        """Leave the connection."""
        await self._connection.leave(self)

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`. A message that the stream already has under its id is confirmed too."""
        try:
            link = await self._connection.link()
        except ConfigError as error:
            raise BrokerUnavailable(str(error)) from error
        outcomes: list[BaseException | None] = [None] * len(messages)
        letters: list[Letter] = []
        numbers: list[int] = []
        for number, message in enumerate(messages):
            try:
                letter = (self._subject(message), message.payload, outgoing(message, link.max_payload))
            except MessageError as error:
                outcomes[number] = error
            else:
                letters.append(letter)
                numbers.append(number)
        for number, outcome in zip(numbers, await confirm(link, letters), strict=True):
            outcomes[number] = outcome
        if any(isinstance(outcome, BrokerUnavailable) for outcome in outcomes) and link.is_connected:
            # It took nothing in for so long that a new connection is the better guess.
            await self._connection.drop(link)
        return outcomes

    def _subject(self, message: Message) -> str:
        """Where this message goes: its own topic, else the subject with the message's words in it."""
        if topic := topic_of(message):
            return _UNFIT.sub("_", topic)
        words = {"type": message.type, "key": message.key or "", "source": message.source}
        return _WORD.sub(lambda found: _UNFIT.sub("_", words[found[1]]) or "_", self.name)

    def _pattern(self) -> str:
        """Every subject that this may publish to."""
        fixed, brace, _ = self.name.partition("{")
        if not brace:
            return fixed
        return fixed + ">" if not fixed or fixed.endswith(".") else fixed.rpartition(".")[0] + ".>"
