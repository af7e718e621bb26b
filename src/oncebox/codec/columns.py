"""What is kept in columns beside the payload: results, headers, provenance."""

from __future__ import annotations

from typing import Any

import msgspec

from oncebox.errors import OnceboxError, UsageError
from oncebox.message import Headers


def encode_result(value: Any) -> bytes:
    """A handler's result as JSON, as every duplicate will read it. `UsageError` if it has no JSON form."""
    try:
        return msgspec.json.encode(value, enc_hook=_jsonable)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"a result of type {type(value).__name__} has no JSON form ({type(error).__name__}); "
            "return what JSON can say (dict, list, text, numbers, dataclasses, models), or nothing"
        ) from error


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode_result(stored: bytes) -> Any:
    """What `encode_result` kept, as plain JSON values."""
    try:
        return msgspec.json.decode(stored)
    except (ValueError, RecursionError) as error:
        raise OnceboxError("a stored result is not JSON: its row was changed by something else") from error


def pack_headers(headers: Headers) -> bytes:
    """Headers as one column: order, repeats and bytes that are not text are kept."""
    if not headers:
        return _NO_HEADERS[1]
    try:
        return msgspec.msgpack.encode(headers)
    except UnicodeEncodeError:
        storable = [(name.encode(errors="backslashreplace").decode(), value) for name, value in headers]
        return msgspec.msgpack.encode(storable)


_headers = msgspec.msgpack.Decoder(tuple[tuple[str, Any], ...])
_NO_HEADERS = (b"", msgspec.msgpack.encode(()))


def unpack_headers(stored: bytes) -> Headers:
    """What `pack_headers` kept; nothing for an empty column."""
    if stored in _NO_HEADERS:
        return ()
    # A producer's own code may have put text into a header; a worker must not stumble over it.
    pairs = _headers.decode(stored)
    return tuple((name, value if isinstance(value, bytes) else value.encode()) for name, value in pairs)


def pack_provenance(provenance: dict[str, Any]) -> str:
    """Where a message came from, as JSON text. Never raises: what has no JSON form is kept as its text."""
    try:
        return _json.encode(provenance).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        plain = {storable(str(name)): storable(str(value)) for name, value in provenance.items()}
        return msgspec.json.encode(plain).decode()


_json = msgspec.json.Encoder(enc_hook=str)
_provenance = msgspec.json.Decoder(dict[str, Any])


def unpack_provenance(stored: str) -> dict[str, Any]:
    """What `pack_provenance` kept; nothing for an empty column."""
    return _provenance.decode(stored) if stored else {}


def storable(text: str) -> str:
    """Text that every database takes: without NUL, lone surrogates replaced."""
    return text.replace("\0", "").encode(errors="replace").decode()
