"""Deliveries to resolve, plain and as CloudEvents."""

import json
from typing import Any

from oncebox.brokers.contract import Delivery
from oncebox.identity import Resolved

BINARY = (("ce-id", b"ce-1"), ("ce-source", b"/shop"), ("ce-type", b"order.paid"), ("ce-specversion", b"1.0"))
STRUCTURED = (("Content-Type", b"application/cloudevents+json; charset=utf-8"),)


def delivery(body: Any = b"", headers: Any = (), **properties: Any) -> Delivery:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Delivery(body=raw, headers=headers, properties=properties)


def event(**members: Any) -> Delivery:
    return delivery(
        {"specversion": "1.0", "id": "ce-1", "source": "/shop", "type": "order.paid", **members}, STRUCTURED
    )


def key(resolved: Resolved) -> tuple[str, str | None, str]:
    return (resolved.source, resolved.id, resolved.type)
