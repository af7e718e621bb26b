"""Messages in a file: one JSON value per line, or one JSON array; plain or gzip, by its first bytes.

Reads no more than a line at a time (an array is read whole, within a limit), and says of each which
one it is.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from oncebox.codec.payloads import nested_too_deep
from oncebox.errors import ConfigError, OnceboxError

ARRAY_BYTES_MAX = 256 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_PIECE = 1024 * 1024


class Line(NamedTuple):
    """One line, without its end; or one entry of an array. Counted from 1, empty ones included."""

    number: int
    body: bytes
    problem: str = ""
    """Why it is not even read; it was given to `aside` already."""


class Lines:
    """The lines of a file or of standard input. `aside` gets the pieces of a line that is too long to read."""

    def __init__(self, raw: BinaryIO, bytes_max: int, aside: Callable[[bytes], None]) -> None:
        self._raw = raw
        self._bytes_max = bytes_max
        self._aside = aside
        self._seekable = raw.seekable()

    def position(self) -> int:
        """Bytes of the file that are read, compressed ones where it is; 0 for a pipe."""
        return self._raw.tell() if self._seekable else 0

    def __iter__(self) -> Iterator[Line]:
        number = 0
        try:
            for line in self._read(_peekable(self._raw)):
                number = line.number
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OnceboxError(
                f"the file is damaged after line {number:,}: {error}; what came before is taken"
            ) from None
        except OSError as error:
            raise OnceboxError(
                f"the file can't be read after line {number:,}: {error.strerror or error}"
            ) from None

    def _read(self, file: io.BufferedReader) -> Iterator[Line]:
        if file.peek(2)[:2] == _GZIP:
            file = io.BufferedReader(_Unpacked(file), _PIECE)
        if file.peek(3)[:3] == _BOM:
            file.read(3)
        if file.peek(1)[:1] == b"[":
            text = file.read(ARRAY_BYTES_MAX + 1)
            if (entries := _entries(text)) is not None:
                yield from (Line(number, entry) for number, entry in enumerate(entries, 1))
                return
            # Lines after all, the first of which happens to begin like that.
            file = _peekable(io.BytesIO(text))
        yield from self._lines(file)

    def _lines(self, file: io.BufferedReader) -> Iterator[Line]:
        number = 0
        while body := file.readline(self._bytes_max + 2):
            number += 1
            if len(body.rstrip(b"\r\n")) <= self._bytes_max:
                yield Line(number, body.rstrip(b"\r\n"))
                continue
            size = len(body)
            self._aside(body)
            while body[-1:] != b"\n" and (body := file.readline(_PIECE)):
                size += len(body)
                self._aside(body)
            if body[-1:] != b"\n":
                self._aside(b"\n")
            yield Line(number, b"", f"{size:,} bytes; the limit is {self._bytes_max:,}")


class _Unpacked(io.RawIOBase):
    """A gzip file piece by piece: of one that was cut off, everything before the cut is read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._gzip = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._gzip.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def _peekable(raw: Any) -> io.BufferedReader:
    return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw, _PIECE)


def _entries(text: bytes) -> list[bytes] | None:
    if len(text) > ARRAY_BYTES_MAX:
        raise ConfigError(
            f"a JSON array of more than {ARRAY_BYTES_MAX:,} bytes; make lines of it first: jq -c '.[]'"
        )
    if nested_too_deep(text):
        return None
    try:
        return [bytes(entry) for entry in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except (ValueError, RecursionError):
        return None
