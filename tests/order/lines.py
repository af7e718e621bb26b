"""What the order tests share: messages with a place, and what came of them."""

from typing import Any

from oncebox import Consumer, Message
from tests.core.kit import Call, Shop, event

BY_KEY: dict[str, Any] = {"order_by": "key", "key": "case"}
AT_ONCE_SECONDS = 1e-7
"""A gap is over as soon as it is there: less than the databases' clocks tell apart, SQLite's milliseconds too."""
BY_SEQUENCE: dict[str, Any] = {
    "order_by": "sequence",
    "key": "case",
    "sequence": "version",
    "sequence_start": 1,
}


def case(key: str, version: int, **words: Any) -> Message:
    """One version of one case."""
    words.setdefault("id", f"{key}-{version}")
    return event(payload={"case": key, "version": version}, **words)


async def note(call: Call) -> None:
    """An effect that says which version of which case it is."""
    await call.db.run(
        "INSERT INTO shop_line (key, version) VALUES (?, ?)", call.payload["case"], call.payload["version"]
    )


def applied(shop: Shop, key: str) -> list[int]:
    """The versions of a case in the order their effects were written."""
    return [
        int(version)
        for (version,) in shop.rows("SELECT version FROM shop_line WHERE key = ? ORDER BY n", key)
    ]


def lines(shop: Shop) -> int:
    """How many effects there are."""
    return int(shop.rows("SELECT count(*) FROM shop_line")[0][0])


async def put(shop: Shop, consumer: Consumer, *messages: Message) -> None:
    """Store them in this order, and work until nothing has a turn."""
    for message in messages:
        await shop.deliver(consumer, message)
    await shop.work_off(consumer)
