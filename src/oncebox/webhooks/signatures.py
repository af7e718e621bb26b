"""Who sent this? Checks over the raw bytes of a request, before anything in it is parsed.

A check also says what it vouches for. Only that may name the message: a header beside a signature can
be changed by whoever has once seen the request.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Literal, Protocol

import msgspec

from oncebox.errors import ConfigError
from oncebox.identity import Envelope, Identity, field, header

TOLERANCE_SECONDS = 300.0
"""How far a signature's time may be from ours, in both directions."""
Secret = str | bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What a check vouches for, besides the body."""

    id: str | None = None
    """The message's id, where the signature covers one outside of the body."""
    headers: bool = False
    """Whether the headers are as trustworthy as the body."""


class Unverified(Exception):
    """Not from whom it says, or not fresh. The text is for our log, never for the sender."""


class Verifier(Protocol):
    """How an endpoint knows its sender. Write your own for schemes that are not here."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Headers it reads, in lower case: each must be there exactly once, and none is kept."""
        ...

    @property
    def identity(self) -> Identity:
        """Where this sender puts id and type; what the endpoint names goes before."""
        ...

    @property
    def challenge(self) -> str:
        """For `WWW-Authenticate`."""
        ...

    def check(self, headers: Mapping[str, bytes], body: bytes, now: float) -> Proof:
        """What is vouched for, or `Unverified`. `headers` has those of `needs`; `now` is Unix time."""
        ...


def standard(
    *secrets: Secret, prefix: str = "webhook-", tolerance_seconds: float = TOLERANCE_SECONDS
) -> Verifier:
    """Standard Webhooks (symmetric, `v1`): `whsec_…` secrets; `prefix="svix-"` for Svix's own headers.

    The id is `webhook-id`, which is signed; the type is the body's `type`. Several secrets are accepted
    side by side, for rotation. ConfigError for no secret, an empty one, and one that is not base64.
    """
    return _Standard(
        [_decoded(secret) for secret in _checked("standard", secrets)], prefix, tolerance_seconds
    )


def stripe(*secrets: Secret, tolerance_seconds: float = TOLERANCE_SECONDS) -> Verifier:
    """Stripe's `Stripe-Signature`; id and type are the event's own, in the signed body."""
    return _Stripe(_checked("stripe", secrets), tolerance_seconds)


def github(*secrets: Secret, dedup: Literal["delivery", "body"] = "delivery") -> Verifier:
    """GitHub's `X-Hub-Signature-256`, which covers the body only: no id, no type and no time.

    `dedup="delivery"`: the id is `X-GitHub-Delivery` joined with the body's hash, so that a delivery
    id alone suppresses nothing. `dedup="body"`: the body's hash alone, so that a captured request can't be
    replayed under another delivery id; two events with equal bodies are then one.
    """
    if dedup not in ("delivery", "body"):
        raise ConfigError(f"github(dedup={dedup!r}): it is 'delivery' or 'body'")
    return _GitHub(_checked("github", secrets), dedup)


def token(*tokens: Secret, header: str = "authorization", scheme: str = "Bearer") -> Verifier:
    """A plain token: `Authorization: Bearer …`, or the whole value of another header.

    Who has the token may say anything, headers included. Nothing protects against a replay by whoever saw
    a request; use a signature where the sender can make one.
    """
    if not header or header != header.strip():
        raise ConfigError(f"token(header={header!r}): name the header")
    return _Token(_checked("token", tokens), header.lower(), scheme)


class _Standard:
    challenge = "Webhook-Signature"

    def __init__(self, secrets: list[bytes], prefix: str, tolerance_seconds: float) -> None:
        self._secrets = secrets
        self._id, self._time, self._signature = (
            f"{prefix.lower()}{n}" for n in ("id", "timestamp", "signature")
        )
        self._tolerance_seconds = _tolerance(tolerance_seconds)
        self.needs = (self._id, self._time, self._signature)
        self.identity = Identity(type=_event_type)

    def check(self, headers: Mapping[str, bytes], body: bytes, now: float) -> Proof:
        name, at = headers[self._id], headers[self._time]
        # The parts are joined by full stops. One inside the id would let its bytes and the body's trade places.
        if not name or b"." in name or not name.isascii():
            raise Unverified("the id is empty, has a full stop, or is not ASCII")
        _check_time(at, now, self._tolerance_seconds)
        given = [one[3:] for one in headers[self._signature].split(b" ") if one.startswith(b"v1,")]
        made = (b64encode(_digest(secret, b"%b.%b." % (name, at), body)) for secret in self._secrets)
        _check_any(made, given)
        return Proof(id=name.decode())


class _Stripe:
    challenge = "Stripe-Signature"
    needs = ("stripe-signature",)
    identity = Identity(id=field("id"), type=field("type"))

    def __init__(self, secrets: list[bytes], tolerance_seconds: float) -> None:
        self._secrets = secrets
        self._tolerance_seconds = _tolerance(tolerance_seconds)

    def check(self, headers: Mapping[str, bytes], body: bytes, now: float) -> Proof:
        pairs = [item.strip().partition(b"=") for item in headers["stripe-signature"].split(b",")]
        times = [value for name, _, value in pairs if name == b"t"]
        if len(times) != 1:
            raise Unverified("the signature has no time, or several")
        _check_time(times[0], now, self._tolerance_seconds)
        made = (_digest(secret, times[0] + b".", body).hex().encode() for secret in self._secrets)
        _check_any(made, [value for name, _, value in pairs if name == b"v1"])
        return Proof()


class _GitHub:
    challenge = "X-Hub-Signature-256"
    needs = ("x-hub-signature-256",)

    def __init__(self, secrets: list[bytes], dedup: str) -> None:
        self._secrets = secrets
        found = _by_body if dedup == "body" else header("x-github-delivery")
        self.identity = Identity(id=found, type=header("x-github-event"))

    def check(self, headers: Mapping[str, bytes], body: bytes, now: float) -> Proof:
        given = headers["x-hub-signature-256"]
        if not given.startswith(b"sha256="):
            raise Unverified("not a SHA-256 signature")
        _check_any((_digest(secret, b"", body).hex().encode() for secret in self._secrets), [given[7:]])
        return Proof()


class _Token:
    identity = Identity()

    def __init__(self, tokens: list[bytes], header: str, scheme: str) -> None:
        self._tokens = tokens
        self._header = header
        self._scheme = scheme.encode() if header == "authorization" else b""
        self.needs = (header,)
        self.challenge = scheme

    def check(self, headers: Mapping[str, bytes], body: bytes, now: float) -> Proof:
        given = headers[self._header].strip()
        if self._scheme:
            scheme, _, given = given.partition(b" ")
            if scheme.lower() != self._scheme.lower():
                raise Unverified("another authentication scheme")
        _check_any(iter(self._tokens), [given.strip()])
        return Proof(headers=True)


def _event_type(envelope: Envelope) -> str | None:
    """The CloudEvent's type, or the body's `type`, as Standard Webhooks recommends it."""
    if envelope.event is not None:
        return envelope.event.type
    return field("type")(envelope)


def _by_body(envelope: Envelope) -> str:
    return f"sha256:{sha256(envelope.body).hexdigest()}"


def _checked(scheme: str, secrets: tuple[object, ...]) -> list[bytes]:
    """Secrets as bytes; an empty one would let everybody in."""
    if not secrets:
        raise ConfigError(f"{scheme}() needs a secret, or several for rotation")
    found = []
    for place, secret in enumerate(secrets, 1):
        if not isinstance(secret, (str, bytes)) or not secret.strip():
            raise ConfigError(f"{scheme}(): secret {place} is empty; is its environment variable set?")
        found.append(secret.encode() if isinstance(secret, str) else secret)
    return found


def _decoded(secret: bytes) -> bytes:
    try:
        found = b64decode(secret.strip().removeprefix(b"whsec_"), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise ConfigError("standard(): a secret is base64, with or without whsec_ before it")
    return found


def _tolerance(seconds: float) -> float:
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"tolerance_seconds={seconds!r}: more than 0, and a day at most")
    return seconds


def _check_time(given: bytes, now: float, tolerance_seconds: float) -> None:
    # `isdigit` of bytes takes ASCII digits alone; int() would take signs, spaces and underscores too.
    if not given.isdigit() or len(given) > 15:
        raise Unverified("the time is not a Unix time")
    if abs(now - int(given)) > tolerance_seconds:
        raise Unverified(f"the time is {now - int(given):+.0f} s from ours: a replay, or a clock that is off")


def _digest(secret: bytes, prefix: bytes, body: bytes) -> bytes:
    made = hmac.new(secret, prefix, sha256)
    made.update(body)
    return made.digest()


def _check_any(made: Iterable[bytes], given: list[bytes]) -> None:
    if not any(hmac.compare_digest(ours, theirs) for ours in made for theirs in given):
        raise Unverified("it matches none of the secrets")
