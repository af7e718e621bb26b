"""The fingerprint of a message: what tells a duplicate from another message under the same id."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from typing import Any

from oncebox.codec.payloads import nested_too_deep
from oncebox.errors import ConfigError
from oncebox.policy import Fingerprint


def fingerprint(type: str, payload: bytes, how: Fingerprint = "raw") -> bytes:  # noqa: A002 - the domain's word
    """32 bytes of SHA-256 over the type and the payload: equal if and only if both are the same.

    `raw` compares bytes. `canonical` compares RFC 8785 canonical JSON, so that whitespace and key
    order don't count; what has no canonical form (not JSON, repeated keys, integers beyond 2**53,
    too deep) is compared as raw bytes. `ConfigError` if the `canonical` extra is not installed.
    """
    if how == "canonical":
        payload = canonical(payload)
    elif how != "raw":
        raise ConfigError(f"fingerprint={how!r}: it is one of 'raw', 'canonical'")
    digest = _begun(type).copy()
    digest.update(payload)
    result: bytes = digest.digest()
    return result


@lru_cache(maxsize=1024)
def _begun(type: str) -> Any:  # noqa: A002
    """A digest that has read the type, length first: ("a", "bc") is not ("ab", "c")."""
    name = type.encode(errors="surrogatepass")
    return sha256(b"%d:%b" % (len(name), name))


def canonical(payload: bytes) -> bytes:
    """The payload as RFC 8785 canonical JSON, or unchanged when it has no such form."""
    dumps = _canonicalizer()
    # Too deep is decided by the bytes alone: leaving it to RecursionError would give one message
    # two fingerprints, depending on how much stack its caller has used.
    if nested_too_deep(payload):
        return payload
    try:
        value = json.loads(payload.decode(), object_pairs_hook=_unrepeated, parse_constant=_refused)
        canonical: bytes = dumps(value)
    except ValueError:
        return payload
    return canonical


def _canonicalizer() -> Any:
    try:
        import rfc8785
    except ImportError:
        raise ConfigError(
            "fingerprint='canonical' needs the rfc8785 package: pip install 'oncebox[canonical]'"
        ) from None
    return rfc8785.dumps


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated key: readers disagree about which one counts")
    return members


def _refused(constant: str) -> Any:
    raise ValueError("NaN and Infinity are not JSON")
