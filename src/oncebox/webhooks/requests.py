"""From a verified request to deliveries: one message, or a batch of CloudEvents; and which message each is.

What a message is called, and how its body is read, is decided by what the check vouches for. Where
that is the body alone, a CloudEvent is known by its shape, not by a content type that anybody may change,
and an id from a header gets the body's hash joined to it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from oncebox.brokers.contract import Delivery
from oncebox.codec.payloads import nested_too_deep
from oncebox.identity import Identity, Resolved
from oncebox.identity.cloudevents import BATCH, STRUCTURED, is_batch, is_structured, media
from oncebox.message import Headers
from oncebox.webhooks.answers import Refusal
from oncebox.webhooks.asgi import only
from oncebox.webhooks.signatures import Proof

BATCH_MAX = 1000
"""Events in one request."""
_FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A request from somebody we know."""

    path: str
    headers: Headers
    """Those that may be kept, in lower case."""
    body: bytes
    proof: Proof
    identity: Identity


def read_deliveries(request: Verified) -> tuple[list[Delivery], bool]:
    """What is in the request, and whether it is a batch. Refuses what is not as it says it is."""
    declared = _content_type(request)
    kind = media(declared)
    batch, structured = kind == BATCH, kind == STRUCTURED
    if not request.proof.headers:
        batch, structured = _shape(request.body, batch, structured)
    elif not batch and not structured:
        for name in ("ce-id", "ce-source", "ce-type"):
            only(request.headers, name)
    if batch:
        return [_delivery(request, body, STRUCTURED) for body in _entries(request.body)], True
    if structured:
        return [_delivery(request, request.body, STRUCTURED)], False
    carried = {"message_id": request.proof.id} if request.proof.id is not None else {}
    return [_delivery(request, request.body, declared, **carried)], False


def _content_type(request: Verified) -> str:
    encoding = only(request.headers, "content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise Refusal(415, "send the body without a content encoding: what was signed is what is read")
    declared = (only(request.headers, "content-type") or b"").decode("latin-1")
    kind = media(declared)
    if kind in _FORMS:
        raise Refusal(415, "send JSON, not a form: set the webhook's content type to application/json")
    if kind.startswith("application/cloudevents") and kind not in (STRUCTURED, BATCH):
        raise Refusal(415, f"CloudEvents are taken as {STRUCTURED}, {BATCH}, or in headers")
    return declared


def _shape(body: bytes, batch: bool, structured: bool) -> tuple[bool, bool]:
    """What the signed bytes themselves say; 400 where the content type says otherwise."""
    is_events, is_event = is_batch(body), is_structured(body)
    if (batch and not is_events) or (structured and not is_event):
        raise Refusal(400, "the body is not the CloudEvents JSON that its content type says")
    return is_events, is_event


def _entries(body: bytes) -> list[bytes]:
    try:
        if nested_too_deep(body):
            raise ValueError("too deep")
        found = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not a JSON array of CloudEvents") from None
    if len(found) > BATCH_MAX:
        raise Refusal(413, f"a batch of {len(found):,} events; the limit is {BATCH_MAX:,}")
    return [bytes(raw) for raw in found]


def _delivery(request: Verified, body: bytes, content_type: str, **carried: str) -> Delivery:
    return Delivery(
        body=body,
        headers=request.headers,
        properties={"content_type": content_type, **carried},
        # The same for every delivery: it is part of what an unidentified message is told by.
        provenance={"webhook": request.path},
    )


def resolve(request: Verified, delivery: Delivery) -> Resolved:
    """Which message this is, by what is vouched for; `id` is None where nothing says."""
    if request.proof.headers:
        return request.identity.resolve(delivery)
    bare = msgspec.structs.replace(delivery, headers=())
    vouched, told = request.identity.resolve(bare), request.identity.resolve(delivery)
    if vouched.id is not None:
        # A type from an unsigned header is part of the fingerprint: another one is a conflict, not a run.
        return msgspec.structs.replace(vouched, type=vouched.type or told.type)
    if told.id is None:
        return told
    joined = f"{told.id}~{sha256(delivery.body).hexdigest()}"
    # The payload as the bare reading has it: unsigned headers must not choose how the body is read.
    return msgspec.structs.replace(
        told, id=joined, payload=vouched.payload, content_type=vouched.content_type
    )
