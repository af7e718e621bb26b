"""Which message is this? Fingerprints, ids made from what is stable, and resolvers that find them.

Decides (source, id, type) for a delivery. There is no way here to make an id from a delivery tag,
a random number, a clock, or an offset alone: none of them is the same for a second delivery.
"""

from oncebox.identity.fingerprints import fingerprint
from oncebox.identity.ids import business, content, derived, position
from oncebox.identity.resolvers import (
    Delivered,
    Envelope,
    Identity,
    Resolved,
    Resolver,
    broker_id,
    by_business,
    by_content,
    by_position,
    cloudevents,
    field,
    header,
)

__all__ = [
    "Delivered",
    "Envelope",
    "Identity",
    "Resolved",
    "Resolver",
    "broker_id",
    "business",
    "by_business",
    "by_content",
    "by_position",
    "cloudevents",
    "content",
    "derived",
    "field",
    "fingerprint",
    "header",
    "position",
]
