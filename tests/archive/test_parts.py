"""Parts: the same rows make the same file, what was changed is found out, and readers get each row once."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest

from oncebox.archive import Archived, keep, messages, open_place, parts, rows
from oncebox.archive.places import Folder
from oncebox.archive.writing import verify
from oncebox.codec import pack_headers
from oncebox.errors import ArchiveError, ConfigError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(n: int, *, at: datetime = NOON, **words: Any) -> Archived:
    return Archived(
        **{
            "consumer": "billing", "source": "s", "id": f"evt-{n}", "type": "paid", "fingerprint": b"\0\xff",
            "received": at + timedelta(microseconds=n), "finished": None, "state": 0, **words,
        }
    )  # fmt: skip


def full(n: int, **words: Any) -> Archived:
    """With all there can be."""
    return row(
        n, **{
            "finished": NOON, "result": b'{"n":1}', "place": n + 1, "key": "k", "payload": b"\0" * 10,
            "headers": pack_headers((("a", b"\xff"), ("a", b"2"))), "content_type": "text/plain",
            "provenance": '{"queue":"q"}', **words,
        }
    )  # fmt: skip


def ids(found: Any) -> list[str]:
    return [each.id for each in found]


def test_rows_come_back_as_they_were(url: str) -> None:
    given = [row(0), full(1), full(2, source="", type="ü", key=None, payload=b"")]
    part = keep(open_place(url), given)
    assert list(rows(url)) == given
    assert (part.consumer, part.day, part.rows, part.first) == ("billing", date(2026, 3, 1), 3, 2)
    [listed] = parts(url)
    assert (listed.name, listed.size > 0) == (part.name, True)
    found = next(messages(url, consumer="billing")).message(replay=True)
    assert (found.id, found.payload, found.headers) == ("evt-1", b"\0" * 10, (("a", b"\xff"), ("a", b"2")))
    assert (found.key, found.content_type, found.provenance, found.replay) == (
        "k", "text/plain", {"queue": "q"}, True,
    )  # fmt: skip


def test_the_same_rows_are_the_same_part_in_whatever_order_they_come(url: str) -> None:
    given = [full(n) for n in range(5)]
    assert keep(open_place(url), given) == keep(open_place(url), given[::-1])
    assert len(parts(url)) == 1


def test_a_row_that_was_written_twice_is_read_once(url: str) -> None:
    place = open_place(url)
    keep(place, [full(n) for n in range(4)])
    keep(place, [full(n) for n in range(2, 6)])
    keep(place, [full(n) for n in range(6)])
    assert len(parts(url)) == 3
    assert sorted(ids(rows(url))) == [f"evt-{n}" for n in range(6)]
    assert ids(messages(url, consumer="billing")) == [f"evt-{n}" for n in range(6)]


def test_messages_come_as_they_took_effect_however_they_lie(url: str) -> None:
    place = open_place(url)
    order = [7, 3, 9, 1, 4, 8, 2, 6, 5, 0]
    for n in (0, 3, 6, 9):
        keep(place, [full(each, place=order.index(each) + 1) for each in order[n : n + 3]][::-1])
    # Received a day later, and yet the second to take effect.
    keep(place, [full(99, place=2, at=NOON + timedelta(days=1)), row(100, at=NOON + timedelta(days=1))])
    found = ids(messages(url, consumer="billing"))
    assert found == [f"evt-{n}" for n in (7, 3, 99, 9, 1, 4, 8, 2, 6, 5, 0)] or found == [
        f"evt-{n}" for n in (7, 99, 3, 9, 1, 4, 8, 2, 6, 5, 0)
    ]


def test_a_span_is_what_was_received_in_it(url: str) -> None:
    place = open_place(url)
    for n in range(5):
        keep(place, [full(n, at=NOON + timedelta(days=n))])
    span: dict[str, Any] = {"since": NOON + timedelta(days=1), "until": NOON + timedelta(days=3)}
    assert ids(messages(url, consumer="billing", **span)) == ["evt-1", "evt-2"]
    assert ids(rows(url, **span)) == ["evt-1", "evt-2"]
    assert ids(rows(url, since=datetime(2026, 3, 4))) == ["evt-3", "evt-4"]  # noqa: DTZ001 - UTC is meant


@pytest.mark.parametrize("name", ["a/b", "..", "ü %2F=x", "billing", "A" * 63])
def test_a_consumer_may_have_any_name(url: str, name: str) -> None:
    keep(open_place(url), [full(1, consumer=name), full(2, consumer=name)])
    keep(open_place(url), [full(1, consumer="other")])
    assert [part.consumer for part in parts(url, consumer=name)] == [name]
    assert ids(messages(url, consumer=name)) == ["evt-1", "evt-2"]
    assert {each.consumer for each in rows(url)} == {name, "other"}


def test_what_was_changed_is_found_out(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    part = keep(place, [full(n) for n in range(3)])
    other = keep(place, [full(n) for n in range(3, 6)])
    (tmp_path / part.name).write_bytes((tmp_path / other.name).read_bytes())
    with pytest.raises(ArchiveError, match="digest"):
        verify(place, part)
    (tmp_path / part.name).write_bytes((tmp_path / other.name).read_bytes()[:-20])
    with pytest.raises(ArchiveError, match="damaged"):
        list(rows(tmp_path))
    (tmp_path / part.name).unlink()
    with pytest.raises(ArchiveError, match="can't be read"):
        verify(place, part)


class Forgetful(Folder):
    """Says that it has written, and has written something else."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data[:100])


def test_what_can_not_be_read_back_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError):
        keep(Forgetful(tmp_path), [full(1)])


def test_other_files_and_half_written_ones_are_left_alone(tmp_path: Path) -> None:
    part = keep(Folder(tmp_path), [full(1)])
    (tmp_path / part.name).with_name(".new-x").write_bytes(b"half")
    (tmp_path / "notes.parquet").write_bytes(b"")
    assert [each.name for each in parts(tmp_path)] == [part.name]


def test_others_can_read_it_as_a_dataset_by_day(tmp_path: Path) -> None:
    keep(Folder(tmp_path), [full(1), full(2)])
    keep(Folder(tmp_path), [full(3, at=NOON + timedelta(days=1))])
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table(
        filter=ds.field("day") == "2026-03-02"
    )
    assert table["id"].to_pylist() == ["evt-3"]
    assert table["consumer"].to_pylist() == ["billing"]
    assert table["received"].to_pylist() == [NOON + timedelta(days=1, microseconds=3)]


@pytest.mark.parametrize(
    ("url", "said"),
    [("ftp://x/y", "ftp://"), ("", "folder"), ("s3://key:secret@bucket/x", "credentials"), (None, "folder")],
)
def test_what_can_not_be_an_archive_is_refused(url: Any, said: str) -> None:
    from oncebox.archive.places import check_url

    with pytest.raises(ConfigError, match=said) as refused:
        check_url(url)
    assert "secret@" not in str(refused.value)


@pytest.mark.xdist_group("s3")
def test_a_bucket_that_is_not_there_is_an_archive_error(bucket: str) -> None:
    missing = open_place("s3://no-such-bucket/x")
    with pytest.raises(ArchiveError) as refused:
        keep(missing, [full(1)])
    assert "\n" not in str(refused.value)


def test_importing_oncebox_needs_neither_library() -> None:
    script = (
        "import sys, oncebox, oncebox.archive, oncebox.runtime.sweeper, oncebox.cli.commands\n"
        "assert not {'pyarrow', 'obstore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
