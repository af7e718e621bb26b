"""Where an archive lies: a folder, or a bucket of an object store. All calls block; a sweeper uses a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from oncebox.errors import ArchiveError, ConfigError
from oncebox.files import write_whole

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
TIMEOUT = "30s"
RETRIES = 3


class Place(Protocol):
    """Files by name. ArchiveError for whatever goes wrong."""

    def put(self, name: str, data: bytes) -> None:
        """Durable when it returns, and there whole or not at all; what had this name is replaced."""
        ...

    def get(self, name: str) -> bytes:
        """What was put, read from where it lies."""
        ...

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Name and size of everything below `prefix`, which is empty or ends with a slash."""
        ...


def check_url(url: object) -> str:
    """The URL, or ConfigError for what can't be one. Opens nothing, and needs no extra."""
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"archive={url!r}: it is a folder, or a URL such as s3://bucket/prefix")
    scheme = _SCHEME.match(url)
    if scheme is not None and scheme[1].lower() not in SCHEMES:
        raise ConfigError(f"archive: {scheme[1]}:// is none of {', '.join(SCHEMES)}; or name a folder")
    if re.match(r"[a-z0-9+.-]+://[^/]*@", url, re.IGNORECASE):
        raise ConfigError("archive: no credentials in the URL; they come from the environment (AWS_…)")
    return url


def open_place(url: str | os.PathLike[str]) -> Place:
    """The folder or the bucket that is meant; ConfigError where it can't be one, or its library is missing."""
    text = check_url(os.fspath(url))
    if text.lower().startswith("file://"):
        return Folder(text[len("file://") :])
    return Objects(text) if _SCHEME.match(text) else Folder(text)


class Folder:
    """A folder. Files are written beside their name, synced, and renamed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"archive: {self.path} is a file, not a folder")

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def put(self, name: str, data: bytes) -> None:
        try:
            write_whole(self.path / name, data)
        except OSError as error:
            raise ArchiveError(
                f"archive: {self.path / name} can't be written: {error.strerror or error}"
            ) from error

    def get(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ArchiveError(
                f"archive: {self.path / name} can't be read: {error.strerror or error}"
            ) from error

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        try:
            for file in sorted((self.path / prefix).rglob("*.parquet")):
                yield file.relative_to(self.path).as_posix(), file.stat().st_size
        except OSError as error:
            raise ArchiveError(f"archive: {self.path} can't be read: {error.strerror or error}") from error


class Objects:
    """A bucket, by obstore: S3 and what speaks like it, Google Cloud Storage, Azure.

    Endpoint and credentials are those of the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, …).
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise ConfigError(f"archive={url!r} needs obstore: pip install 'oncebox[archive]'") from error
        self.url = url
        self._obstore = obstore
        # What is not there and what is not allowed it raises as Python's own.
        self._errors = (BaseError, OSError)
        options: dict[str, Any] = {
            "client_options": {"timeout": TIMEOUT, "connect_timeout": "10s"},
            "retry_config": {"max_retries": RETRIES},
        }
        if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
            options["client_options"]["allow_http"] = True
        make: Any = from_url
        try:
            self._store = make(url, **options)
        except (*self._errors, ValueError) as error:
            raise ConfigError(f"archive={url!r}: {_first_line(error)}") from error

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    def put(self, name: str, data: bytes) -> None:
        try:
            self._obstore.put(self._store, name, data)
        except self._errors as error:
            raise ArchiveError(
                f"archive: {name} can't be written to {self.url}: {_first_line(error)}"
            ) from error

    def get(self, name: str) -> bytes:
        try:
            return bytes(self._obstore.get(self._store, name).bytes())
        except self._errors as error:
            raise ArchiveError(
                f"archive: {name} can't be read from {self.url}: {_first_line(error)}"
            ) from error

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        try:
            for chunk in self._obstore.list(self._store, prefix.rstrip("/") or None):
                for each in chunk:
                    yield each["path"], each["size"]
        except self._errors as error:
            raise ArchiveError(f"archive: {self.url} can't be listed: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """What went wrong, without the library's debugging text."""
    return str(error).partition("\n")[0][:300]
