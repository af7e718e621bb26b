"""The subject that a source is given for its dead: they go there too, as they came, with the reason."""

from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from oncebox.brokers.contract import Delivery
from oncebox.brokers.nats.confirms import confirm
from oncebox.brokers.nats.connection import Connection
from oncebox.brokers.nats.headers import NAME, Pairs, checked
from oncebox.brokers.nats.topology import ask
from oncebox.errors import BrokerUnavailable, ConfigError, MessageError


class DeadLetters:
    """Publishes copies of dead messages to a subject of their own."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self._connection = connection
        self._subject = subject

    async def check(self, js: JetStreamContext, stream: str) -> None:
        """`ConfigError` unless another stream takes the subject: in this one the message's id is known,
        and the server would drop the copy as a duplicate."""
        where = self._connection.where
        try:
            found = await ask(where, js.find_stream_name_by_subject(self._subject))
        except NotFoundError:
            raise ConfigError(
                f"no stream on {where} takes dead_letter={self._subject!r}; create one "
                f"(nats stream add DEAD --subjects '{self._subject}')"
            ) from None
        if found == stream:
            raise ConfigError(
                f"dead_letter={self._subject!r} is in stream {stream!r} itself, which would drop the copy as a "
                "duplicate; give it a stream of its own"
            )

    async def send(self, delivery: Delivery, reason: str) -> None:
        """Return when a stream has the copy; `BrokerUnavailable` when it has not."""
        link = await self._connection.link()
        came = [pair for pair in delivery.headers if _fits(pair[0])]
        where = delivery.provenance
        more = [
            ("oncebox-reason", reason.encode()),
            ("oncebox-origin", f"{where['stream']}:{where['id']}".encode()),
        ]
        try:
            headers = checked([*came, *more], "", len(delivery.body), link.max_payload)
        except MessageError:
            headers = Pairs(came)  # no room left for more
        [failed] = await confirm(link, [(self._subject, delivery.body, headers)])
        if failed is not None:
            raise BrokerUnavailable(f"dead letters to {self._subject}: {failed}") from failed


def _fits(name: str) -> bool:
    """Not what was expected of the first stream, nor a name that nats-py does not write."""
    return NAME.fullmatch(name) is not None and not name.lower().startswith("nats-expected")
