"""From a broker's delivery to an item: identity, type, limits, handler. Never raises for bad input."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from oncebox import errors
from oncebox.brokers.contract import Delivery
from oncebox.core.outcomes import Reason
from oncebox.core.work import Item
from oncebox.identity import Identity, Resolved, fingerprint
from oncebox.identity.lanes import place_reader
from oncebox.message import HEADER_BYTES_MAX, HEADERS_MAX, Message
from oncebox.policy import Policy
from oncebox.runtime.performer import CLAIM_CHECK
from oncebox.runtime.registry import Registry
from oncebox.stores import Store


class Intake:
    """Turns what arrives for one consumer into items. What can't be taken becomes a refusal, which
    is kept among the dead with everything that came; it is never dropped."""

    def __init__(
        self,
        consumer: str,
        policy: Policy,
        registry: Registry,
        identity: Identity | None,
        store: Store | None,
    ) -> None:
        self.consumer = consumer
        self.policy = policy
        self.registry = registry
        self.identity = identity or Identity()
        self.store = store
        self.place = place_reader(policy.order_by, policy.key, policy.sequence)

    def from_delivery(self, delivery: Delivery) -> Item:
        """The delivery as an item; `item.refusal` says why nobody can handle it."""
        message: Message | None = None
        try:
            said = self.identity.said(delivery)
            if said is not None:
                message_id, source, kind = said
                message = Message(
                    id=message_id,
                    source=source,
                    type=kind,
                    payload=delivery.body,
                    headers=delivery.headers,
                    key=delivery.key,
                    provenance=delivery.provenance,
                    deliveries=delivery.deliveries,
                )
        except Exception:
            message = None  # the long way says what is wrong with it
        if message is not None:
            item = self.from_message(message, delivery)
            if delivery.place is not None:
                item.place = delivery.place
            return item
        try:
            resolved = self.identity.resolve(delivery)
        except Exception as error:
            item = self._unusable(delivery, error)
        else:
            item = self.from_resolved(delivery, resolved)
        item.place = delivery.place
        return item

    def from_resolved(self, delivery: Delivery, resolved: Resolved) -> Item:
        """The same for a delivery whose identity is resolved already."""
        try:
            if resolved.id is None:
                raise _NoIdentity(
                    f"consumer {self.consumer!r}: a message arrived without an identity ({resolved.why}); name one "
                    "at the source (identity=…) or have the producer set one"
                )
            message = Message(
                id=resolved.id,
                source=resolved.source,
                type=resolved.type,
                payload=resolved.payload,
                headers=delivery.headers,
                key=delivery.key,
                content_type=resolved.content_type,
                provenance=delivery.provenance,
                deliveries=delivery.deliveries,
            )
        except Exception as error:
            return self._unusable(delivery, error)
        return self.from_message(message, delivery)

    def from_message(self, message: Message, delivery: Any = None) -> Item:
        """A message as an item, with its handler or the reason it has none."""
        mark = fingerprint(message.type, message.payload, self.policy.fingerprint)
        item = Item(message, mark, self.registry.find(message.type), delivery)
        size = len(message.payload)
        if size > self.policy.payload_bytes_max:
            limit = self.policy.payload_bytes_max
            item.refusal = (
                Reason.TOO_LARGE,
                errors.TooLarge(
                    f"consumer {self.consumer!r}: payload of {size:,} bytes; the limit is {limit:,}"
                ),
            )
        elif item.handler is None and self.policy.mode == "inline":
            item.refusal = (Reason.UNKNOWN_TYPE, self.unknown_type(message.type))
        if self.policy.order_by is not None:
            self._place(item)
        if item.refusal is None and self.store is not None and 0 < self.policy.claim_check_bytes < size:
            self._check_in(item)
        return item

    def _place(self, item: Item) -> None:
        """Where it stands in line."""
        try:
            item.lane, item.version = self.place(item.message)
        except errors.MessageError as error:
            item.refusal = item.refusal or (Reason.NO_PLACE, error)

    def unknown_type(self, kind: str) -> errors.UsageError:
        """What to tell about a type without a handler."""
        return errors.UsageError(
            f"consumer {self.consumer!r} has no handler for type {kind!r}; it handles: "
            f"{', '.join(map(repr, self.registry.names())) or 'nothing yet'}"
        )

    def _check_in(self, item: Item) -> None:
        """Keep a large payload in the store, and only its reference in the row."""
        assert self.store is not None
        message = item.message
        reference = self.store.put(hashlib.sha256(message.payload).hexdigest(), message.payload)
        headers = (*message.headers, (CLAIM_CHECK, reference.encode()))
        item.message = msgspec.structs.replace(message, headers=headers, payload=b"")
        item.payload = b""
        item.whole = message

    def _unusable(self, delivery: Delivery, error: Exception) -> Item:
        """Something that can't even be a message, under an id made from all that is known of it."""
        if isinstance(error, _NoIdentity):
            reason = Reason.NO_IDENTITY
        elif isinstance(error, errors.TooLarge):
            reason = Reason.TOO_LARGE
        else:
            reason = Reason.UNDECODABLE
        digest = hashlib.sha256(msgspec.json.encode([str(delivery.provenance), str(delivery.properties)]))
        digest.update(delivery.body)
        headers, size = [], 0
        for name, value in delivery.headers[:HEADERS_MAX]:
            size += len(name) + len(value)
            if size <= HEADER_BYTES_MAX:
                headers.append((name, value))
        message = Message(
            id=f"unidentified-{digest.hexdigest()}",
            payload=delivery.body,
            headers=tuple(headers),
            provenance=delivery.provenance,
            deliveries=delivery.deliveries,
        )
        item = Item(message, fingerprint("", message.payload), None, delivery)
        item.refusal = (reason, error)
        return item


class _NoIdentity(errors.MessageError):
    """Nothing in the message says which one it is."""
