"""From bytes to lines: plain, gzip, arrays, damage, and lines that are too long."""

import gzip
import io
from typing import Any, BinaryIO, cast

import pytest

from oncebox.errors import ConfigError, OnceboxError
from oncebox.ingest import lines as module
from oncebox.ingest.lines import Line, Lines


def read(data: bytes, bytes_max: int = 1000) -> tuple[list[Line], bytes]:
    aside: list[bytes] = []
    found = list(Lines(io.BytesIO(data), bytes_max, aside.append))
    return found, b"".join(aside)


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_lines_are_numbered_and_keep_their_bytes(pack: Any) -> None:
    data = b'\xef\xbb\xbf{"a": 1}\n\n  {"b":2}\r\n\xff\xfe\n{"last": true}'
    found, aside = read(pack(data))
    assert [(line.number, line.body) for line in found] == [
        (1, b'{"a": 1}'),
        (2, b""),
        (3, b'  {"b":2}'),
        (4, b"\xff\xfe"),
        (5, b'{"last": true}'),
    ]
    assert aside == b""


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_an_array_is_its_entries(pack: Any) -> None:
    found, _ = read(pack(b'[{"a": 1},\n {"b": [2]},\n 3]\n'))
    assert [(line.number, line.body) for line in found] == [(1, b'{"a": 1}'), (2, b'{"b": [2]}'), (3, b"3")]


@pytest.mark.parametrize("first", [b"[not an array", b"[1]", b"[" * 5000])
def test_lines_of_which_the_first_begins_like_an_array_are_lines(first: bytes) -> None:
    found, _ = read(first + b'\n{"a": 1}\n', 10_000)
    assert [line.body for line in found] == [first, b'{"a": 1}']


def test_nothing_is_no_line() -> None:
    assert read(b"")[0] == read(gzip.compress(b""))[0] == []


def test_a_line_at_the_limit_is_read_and_one_byte_more_goes_aside_whole() -> None:
    fits, over = b"a" * 10, b"b" * 11
    for end in (b"\n", b"\r\n"):
        found, aside = read(fits + end + over + end + b"c\n", 10)
        assert [(line.number, line.body, bool(line.problem)) for line in found] == [
            (1, fits, False),
            (2, b"", True),
            (3, b"c", False),
        ]
        assert aside == over + end


def test_a_huge_line_goes_aside_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 7)
    over = b"x" * 1000
    found, aside = read(b"a\n" + over, 10)
    assert [line.number for line in found] == [1, 2]
    assert aside == over + b"\n"
    assert "1,000 bytes; the limit is 10" in found[1].problem


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_cut_gzip_file_says_after_which_line(keep: float) -> None:
    data = gzip.compress(b"".join(b'{"n": %d}\n' % n for n in range(40_000)))
    cut = Lines(io.BytesIO(data[: int(len(data) * keep)]), 1000, lambda piece: None)
    seen: list[Line] = []
    with pytest.raises(OnceboxError, match=r"damaged after line [\d,]+: "):
        seen.extend(cut)
    # All of it but what the last piece of the compression holds.
    assert len(seen) > 30_000 * keep
    assert [line.body for line in seen] == [b'{"n": %d}' % n for n in range(len(seen))]


def test_a_flipped_byte_in_gzip_is_damage_and_not_a_crash() -> None:
    data = bytearray(gzip.compress(b'{"a": 1}\n' * 1000))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(OnceboxError, match="damaged"):
        list(Lines(io.BytesIO(bytes(data)), 1000, lambda piece: None))


def test_an_array_that_is_too_large_to_hold_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ARRAY_BYTES_MAX", 100)
    with pytest.raises(ConfigError, match=r"jq -c"):
        read(b"[" + b"1," * 100 + b"1]")


def test_a_disk_that_fails_is_told() -> None:
    class Failing(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise OSError(5, "Input/output error")

    with pytest.raises(OnceboxError, match="can't be read after line 0: Input/output error"):
        list(Lines(cast("BinaryIO", Failing()), 1000, lambda piece: None))
