"""A folder of payloads: whole or absent, found by content, and never a way out of the folder."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from oncebox.errors import ConfigError, StoreError
from oncebox.stores import FolderStore, Store

PAYLOAD = b"a large payload"
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "payloads")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_put_is_got(store: FolderStore) -> None:
    kept: Store = store
    reference = kept.put(DIGEST, PAYLOAD)
    assert reference == f"{DIGEST[:2]}/{DIGEST[2:4]}/{DIGEST}"
    assert kept.get(reference) == PAYLOAD


def test_making_a_store_touches_nothing(tmp_path: Path) -> None:
    FolderStore(tmp_path / "payloads")
    assert list(tmp_path.iterdir()) == []


def test_the_same_payload_is_one_file(store: FolderStore) -> None:
    assert store.put(DIGEST, PAYLOAD) == store.put(DIGEST, PAYLOAD)
    assert len(files(store.folder)) == 1


def test_an_empty_payload_can_be_kept(store: FolderStore) -> None:
    assert store.get(store.put(hashlib.sha256(b"").hexdigest(), b"")) == b""


@pytest.mark.parametrize("digest", [DIGEST.upper(), DIGEST[:-1], "0" * 64, "", "../" * 21 + "x"])
def test_a_digest_that_is_not_the_payloads_is_refused(store: FolderStore, digest: str) -> None:
    with pytest.raises(StoreError, match="not the payload's SHA-256"):
        store.put(digest, PAYLOAD)
    assert not store.folder.exists()


def test_a_missing_payload_is_named(store: FolderStore) -> None:
    reference = store.put(DIGEST, PAYLOAD)
    store.delete(reference)
    with pytest.raises(StoreError, match=f"missing from its store: .*{DIGEST}.*do all processes share it"):
        store.get(reference)


def test_deleting_twice_is_fine(store: FolderStore) -> None:
    reference = store.put(DIGEST, PAYLOAD)
    store.delete(reference)
    store.delete(reference)
    assert files(store.folder) == []


@pytest.mark.parametrize("harm", [b"", b"a large paylo", b"A large payload"])
def test_a_changed_payload_is_never_handed_out(store: FolderStore, harm: bytes) -> None:
    reference = store.put(DIGEST, PAYLOAD)
    (store.folder / reference).write_bytes(harm)
    with pytest.raises(StoreError, match=f"changed in its store: .*{DIGEST}"):
        store.get(reference)


def test_putting_again_mends_a_changed_file(store: FolderStore) -> None:
    reference = store.put(DIGEST, PAYLOAD)
    (store.folder / reference).write_bytes(b"")
    store.put(DIGEST, PAYLOAD)
    assert store.get(reference) == PAYLOAD


@pytest.mark.parametrize(
    "reference",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        f"{DIGEST[:2]}/{DIGEST[2:4]}/../{DIGEST}",
        f"00/00/{DIGEST}",
        f"{DIGEST[:2]}/{DIGEST[2:4]}/{DIGEST}\n",
        f"{DIGEST[:2]}\\{DIGEST[2:4]}\\{DIGEST}",
        "",
    ],
)
def test_a_reference_that_was_not_given_out_is_refused(store: FolderStore, reference: str) -> None:
    store.put(DIGEST, PAYLOAD)
    for use in (store.get, store.delete):
        with pytest.raises(StoreError, match="not a reference that FolderStore gave out"):
            use(reference)


def test_a_crash_before_the_rename_leaves_no_payload(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        store.put(DIGEST, PAYLOAD)
    assert files(store.folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="tells descriptors apart by /proc")
def test_file_and_folders_are_synced_before_put_returns(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    def record_replace(source: str, target: Path) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    store.put(DIGEST, PAYLOAD)
    written, renamed, folder = events[-3:]
    assert written.startswith(".new-")
    assert (renamed, folder) == ("rename", DIGEST[2:4])
    # The folders' own names are durable too, from the outside in.
    assert events[:-3] == [store.folder.parent.name, store.folder.name, DIGEST[:2]]


def test_a_folder_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "payloads").write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        FolderStore(tmp_path / "payloads")


def test_what_can_not_be_written_or_read_is_named(store: FolderStore) -> None:
    reference = store.put(DIGEST, PAYLOAD)
    place = store.folder / reference
    place.unlink()
    place.mkdir()  # not a file any more: reading and replacing both fail
    with pytest.raises(StoreError, match=f"can't be written to .*{DIGEST}"):
        store.put(DIGEST, PAYLOAD)
    with pytest.raises(StoreError, match=f"can't be read from .*{DIGEST}"):
        store.get(reference)
    with pytest.raises(StoreError, match=f"can't be removed: .*{DIGEST}"):
        store.delete(reference)
