"""Claim check: large payloads lie in a store, under the digest of their content, and rows hold a reference.

A payload is put before its row is committed, so a crash leaves at most a file that nothing refers to.
Putting the same content again is the same file.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from oncebox.errors import ConfigError, StoreError
from oncebox.files import write_whole

_DIGEST = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{64})")


class Store(Protocol):
    """Where large payloads are kept. Blocking; an object store can be one as well as a folder."""

    def put(self, digest: str, payload: bytes) -> str:
        """Keep `payload`, whose SHA-256 is `digest` (hex), and return a reference to it.

        Durable when it returns; putting the same again changes nothing.
        """
        ...

    def get(self, reference: str) -> bytes:
        """The payload as it was put, or `StoreError`: never other bytes."""
        ...

    def delete(self, reference: str) -> None:
        """Forget the payload; nothing happens if it is gone already.

        Equal payloads share one reference: the caller knows that no other row holds it.
        """
        ...


class FolderStore:
    """A store in a folder that every process of the app can reach.

    Files are named by their content's SHA-256, two levels deep, and appear whole or not at all.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Path(path)
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"FolderStore: {self.folder} is a file, not a folder")

    def __repr__(self) -> str:
        return f"FolderStore({str(self.folder)!r})"

    def put(self, digest: str, payload: bytes) -> str:
        """Keep `payload` under its digest. `StoreError` if it is another's digest, or can't be written."""
        if not _DIGEST.fullmatch(digest) or sha256(payload).hexdigest() != digest:
            raise StoreError("FolderStore.put: the digest is not the payload's SHA-256 in lower-case hex")
        reference = f"{digest[:2]}/{digest[2:4]}/{digest}"
        place = self.folder / reference
        try:
            # A file of that name is whole (rename is atomic), yet a disk may have harmed it since:
            # trust it only if it still has the content, else replace it.
            if not place.exists() or place.read_bytes() != payload:
                write_whole(place, payload)
        except OSError as error:
            raise StoreError(f"a payload can't be written to {place}: {error.strerror or error}") from error
        return reference

    def get(self, reference: str) -> bytes:
        """The payload, checked against its digest. `StoreError` names a file that is missing or changed."""
        place, digest = self._place(reference)
        try:
            payload = place.read_bytes()
        except FileNotFoundError:
            raise StoreError(
                f"a payload is missing from its store: {place}; is this the folder that the message was "
                "stored with, and do all processes share it?"
            ) from None
        except OSError as error:
            raise StoreError(f"a payload can't be read from {place}: {error.strerror or error}") from error
        if sha256(payload).hexdigest() != digest:
            raise StoreError(
                f"a payload was changed in its store: {place} does not have the digest of its name"
            )
        return payload

    def delete(self, reference: str) -> None:
        """Remove the file. Folders stay: removing them would race with a put."""
        place, _ = self._place(reference)
        try:
            place.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"a payload can't be removed: {place}: {error.strerror or error}") from error

    def _place(self, reference: str) -> tuple[Path, str]:
        """The file of a reference. Only what `put` gives out is one, so none leads out of the folder."""
        parts = _REFERENCE.fullmatch(reference)
        if parts is None or not parts[3].startswith(parts[1] + parts[2]):
            raise StoreError("not a reference that FolderStore gave out; was the message's row changed?")
        return self.folder / reference, parts[3]
