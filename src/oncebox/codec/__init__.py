"""Bytes to values and back: payloads for handlers, results, headers, and errors as stored text."""

from oncebox.codec.columns import (
    decode_result,
    encode_result,
    pack_headers,
    pack_provenance,
    storable,
    unpack_headers,
    unpack_provenance,
)
from oncebox.codec.failures import ErrorText, describe_error, safe_text
from oncebox.codec.payloads import JSON_DEPTH_MAX, Decode, decoder

__all__ = [
    "JSON_DEPTH_MAX",
    "Decode",
    "ErrorText",
    "decode_result",
    "decoder",
    "describe_error",
    "encode_result",
    "pack_headers",
    "pack_provenance",
    "safe_text",
    "storable",
    "unpack_headers",
    "unpack_provenance",
]
