"""`oncebox watermarks`: marks are listed, and forgotten when a person says so."""

import asyncio
from collections.abc import Iterator

import pytest

from oncebox.core.place import Place
from oncebox.runtime.mailbox import ThreadMailbox
from oncebox.runtime.workers import inline_turn
from tests.cli.inside import Desk
from tests.core.kit import Shop, effect, event

WHY = ("--reason", "made again")


@pytest.fixture
def desk(sqlite_url: str) -> Iterator[Desk]:
    shop = Shop("sqlite", sqlite_url, "inline")
    stats = shop.consumer("stats")
    shop.handler(stats)(effect)

    async def handle() -> None:
        mailbox = ThreadMailbox()
        for partition in (0, 1):
            item = stats.intake.from_message(event(f"m{partition}"))
            item.place = Place("clicks", partition, 7 + partition, topic_id="abc")
            mailbox.items.append(item)
        while await shop.perform(stats, lambda work: inline_turn(work, mailbox), mailbox=mailbox):
            pass

    asyncio.run(handle())
    yield Desk(shop)
    asyncio.run(shop.close())


def test_marks_are_listed_by_consumer_topic_and_partition(desk: Desk) -> None:
    found = desk("watermarks", "list", "--json").json()["watermarks"]
    said = [
        (each["consumer"], each["topic"], each["partition"], each["last"], each["topic_id"]) for each in found
    ]
    assert said == [("stats", "clicks", 0, 7, "abc"), ("stats", "clicks", 1, 8, "abc")]
    assert "clicks" in desk("watermarks", "list", "--topic", "clicks", "--consumer", "stats").out
    assert desk("watermarks", "list", "--topic", "other").out.strip() == "No partition has a watermark."


def test_mark_is_forgotten_with_a_reason_and_an_audit_row(desk: Desk) -> None:
    chosen = ("watermarks", "forget", "clicks", "--consumer", "stats", "--by", "me")
    assert "say why" in desk.refuses(*chosen)
    done = desk(*chosen, "--partition", "1", *WHY, "--json").json()
    assert (done["topic"], done["partitions"]) == ("clicks", [1])
    assert desk(*chosen, *WHY).out.strip() == "stats: clicks[0] starts anew"
    assert desk.audit("verb, who, message_id, result") == [
        ("watermarks forget", "me", "clicks:1", "forgotten, was 8"),
        ("watermarks forget", "me", "clicks:0", "forgotten, was 7"),
    ]
    assert "has no watermark for clicks; oncebox watermarks list" in desk.refuses(*chosen, *WHY)


def test_status_tells_who_has_watermarks(desk: Desk) -> None:
    [found] = desk("status", "--json").json()["watermarked"]
    assert (found["consumer"], found["topics"], found["partitions"]) == ("stats", 1, 2)
    assert 0 <= found["oldest_seconds"] < 600
    text = " ".join(desk("status").out.split())
    assert "stats: duplicates by watermark, 2 partitions of 1 topic, the quietest moved" in text
    desk("watermarks", "forget", "clicks", "--consumer", "stats", *WHY)
    assert desk("status", "--json").json()["watermarked"] == []
    assert "watermark" not in desk("status").out
