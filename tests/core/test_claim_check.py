"""Payloads over `claim_check_bytes` lie in the store; handlers get them whole, in either mode."""

from pathlib import Path
from typing import Any

import pytest

from oncebox import Backoff, FolderStore, Status
from tests.core.fixtures import stored
from tests.core.kit import Call, Shop, event

LARGE = b"x" * 5_000


@pytest.fixture
def folder(shop: Shop, tmp_path: Path) -> Path:
    shop.app.store = FolderStore(tmp_path / "payloads")
    return tmp_path / "payloads"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def looking(shop: Shop, consumer: Any) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []

    @shop.handler(consumer, payload=bytes)
    async def looks(call: Call) -> None:
        seen.append((call.payload, call.message.payload, call.message.headers))
        await call.db.effect(call.message.id)

    return seen


async def test_a_large_payload_reaches_its_handler_whole(shop: Shop, folder: Path) -> None:
    billing = shop.consumer(claim_check_bytes=1_000)
    seen = looking(shop, billing)
    message = event(payload=LARGE, headers={"trace": b"1"})

    assert (await shop.settle(billing, message)).status is Status.PROCESSED
    assert seen == [(LARGE, LARGE, (("trace", b"1"),))]
    assert [path.read_bytes() for path in files(folder)] == [LARGE]
    assert (await shop.deliver(billing, message)).status is Status.DUPLICATE
    assert (await shop.deliver(billing, event(payload=LARGE + b"y"))).reason == "conflict"


async def test_a_payload_at_the_bound_stays_in_the_row(shop: Shop, folder: Path) -> None:
    billing = shop.consumer(claim_check_bytes=5_000)
    seen = looking(shop, billing)
    await shop.settle(billing, event(payload=LARGE))
    assert [payload for payload, *_ in seen] == [LARGE]
    assert files(folder) == []


@stored
async def test_while_it_waits_the_row_holds_a_reference_and_not_the_payload(shop: Shop, folder: Path) -> None:
    billing = shop.consumer(claim_check_bytes=1_000)
    seen = looking(shop, billing)
    await shop.deliver(billing, event(payload=LARGE))
    assert shop.rows(f"SELECT length(payload) FROM {shop.table('queue')}") == [(0,)]
    await shop.work_off(billing)
    assert [payload for payload, *_ in seen] == [LARGE]


async def test_a_dead_message_keeps_its_way_to_the_payload(shop: Shop, folder: Path) -> None:
    billing = shop.consumer(claim_check_bytes=1_000, retry=Backoff(attempts=1))

    @shop.handler(billing, payload=bytes)
    async def fails(call: Call) -> None:
        raise ValueError("no")

    assert (await shop.settle(billing, event(payload=LARGE))).status is Status.DEAD
    ((payload, headers),) = shop.rows(f"SELECT payload, headers FROM {shop.table('dead')}")
    (file,) = files(folder)
    assert bytes(payload) == LARGE or file.name.encode() in bytes(headers)


@stored
async def test_a_payload_that_is_gone_from_its_store_is_a_clear_error_and_the_message_is_kept(
    shop: Shop, folder: Path
) -> None:
    billing = shop.consumer(claim_check_bytes=1_000, retry=Backoff(attempts=2, base_seconds=0))
    seen = looking(shop, billing)
    await shop.deliver(billing, event(payload=LARGE))
    (file,) = files(folder)
    file.rename(file.with_suffix(".away"))

    (item,) = await shop.work(billing)
    assert item.outcome is not None
    assert item.outcome.status is Status.RETRY
    assert "missing from its store" in str(item.outcome.error)
    assert str(file) in shop.attempts("evt-1")[0][3]
    assert (await shop.deliver(billing, event(payload=LARGE))).status is Status.WAITING

    file.with_suffix(".away").rename(file)
    (item,) = await shop.work(billing)
    assert item.outcome is not None
    assert item.outcome.status is Status.PROCESSED
    assert len(seen) == 1


@stored
async def test_an_app_without_the_store_says_so(shop: Shop, folder: Path) -> None:
    billing = shop.consumer(claim_check_bytes=1_000)
    looking(shop, billing)
    await shop.deliver(billing, event(payload=LARGE))
    shop.app.store = None
    (item,) = await shop.work(billing)
    assert item.outcome is not None
    assert "App(store=" in str(item.outcome.error)
    assert not shop.effects()
