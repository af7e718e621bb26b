"""Rows as Parquet, and back. The only module that knows pyarrow."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oncebox.core.archived import Archived
from oncebox.errors import ArchiveError, ConfigError

FORMAT = "1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMES = ("received", "finished")


def encode(rows: Sequence[Archived], digest: str) -> bytes:
    """A Parquet file of these rows; the digest is kept in its metadata too."""
    pa, pq = _pyarrow()
    table = pa.Table.from_pydict(
        {name: [_column(row, name) for row in rows] for name in Archived.__struct_fields__}, _schema(pa)
    )
    table = table.replace_schema_metadata({"oncebox.format": FORMAT, "oncebox.digest": digest})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode(data: bytes, name: str) -> list[Archived]:
    """The rows of a file; ArchiveError where it is no Parquet, or not ours."""
    pa, pq = _pyarrow()
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        written = (table.schema.metadata or {}).get(b"oncebox.format", b"").decode()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArchiveError(f"archive: {name} is damaged: it can't be read as Parquet") from error
    if written != FORMAT:
        raise ArchiveError(f"archive: {name} has format {written!r}; this oncebox reads {FORMAT}")
    names = Archived.__struct_fields__
    columns = [_values(pa, table[each], each in _TIMES) for each in names]
    return [Archived(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _column(row: Archived, name: str) -> Any:
    value = getattr(row, name)
    return (value - _EPOCH) // _MICROSECOND if name in _TIMES and value is not None else value


def _values(pa: Any, column: Any, is_time: bool) -> list[Any]:
    if not is_time:
        values: list[Any] = column.to_pylist()
        return values
    return [
        None if value is None else _EPOCH + value * _MICROSECOND
        for value in column.cast(pa.int64()).to_pylist()
    ]


def _schema(pa: Any) -> Any:
    moment, text, raw = pa.timestamp("us", tz="UTC"), pa.string(), pa.large_binary()
    return pa.schema([
        pa.field("consumer", text, nullable=False),
        pa.field("source", text, nullable=False),
        pa.field("id", text, nullable=False),
        pa.field("type", text, nullable=False),
        pa.field("fingerprint", pa.binary(), nullable=False),
        pa.field("received", moment, nullable=False),
        pa.field("finished", moment),
        pa.field("state", pa.int16(), nullable=False),
        pa.field("result", raw),
        pa.field("place", pa.int64()),
        pa.field("key", text),
        pa.field("payload", raw),
        pa.field("headers", pa.binary(), nullable=False),
        pa.field("content_type", text, nullable=False),
        pa.field("provenance", text, nullable=False),
    ])  # fmt: skip


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError("an archive needs pyarrow: pip install 'oncebox[archive]'") from error
    return pyarrow, pyarrow.parquet
