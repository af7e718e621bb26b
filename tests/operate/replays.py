"""What the replay tests share: a consumer that counts, orders, and what a run has come to."""

from typing import Any

from oncebox import Consumer, Message
from oncebox.core.audit import Act
from oncebox.core.replay import replay
from oncebox.core.replay_terms import Chosen, Order, Run
from oncebox.core.shadow import Shadow, shadow
from oncebox.replay import placed
from tests.core.kit import Call, Shop, event

ACT: dict[str, Any] = {"verb": "replay", "who": "me", "reason": "new column"}


def order(consumer: Consumer, **words: Any) -> Order:
    """As the command would give it."""
    words = {"reset": consumer.resetting, "batch": consumer.policy.batch, **words}
    chosen = words.pop("chosen", Chosen())
    return Order(act=Act(**ACT, filter=chosen.words()), chosen=chosen, **words)


def of_file(consumer: Consumer, *messages: Message, **words: Any) -> Order:
    """A replay of messages that are not the ledger's."""
    return order(consumer, origin="file", given=placed(consumer, iter(messages)), **words)


async def again(shop: Shop, consumer: Consumer, asked: Order | None = None, **words: Any) -> Run:
    asked = asked or order(consumer, **words)
    return await shop.perform(consumer, lambda work: replay(work, asked))


async def shadowed(shop: Shop, consumer: Consumer, asked: Order | None = None, **words: Any) -> Shadow:
    asked = asked or order(consumer, **{"reset": None, **words})
    return await shop.perform(consumer, lambda work: shadow(work, asked))


def projection(shop: Shop, name: str = "page", **policy: Any) -> Consumer:
    """A consumer whose effect is a row per message, and a reset that takes them all away."""
    consumer = shop.consumer(name, **{"keep_payload": "always", "replay": "rebuild", **policy})

    @shop.handler(consumer)
    async def project(call: Call) -> Any:
        note = f"{call.payload.get('n', '')} {'again' if call.message.replay else 'live'}"
        await call.db.run("INSERT INTO shop_effect (key, note) VALUES (?, ?)", call.message.id, note)
        return {"replay": call.message.replay}

    return consumer


def resets(shop: Shop, consumer: Consumer) -> None:
    """Give the consumer a reset, as its driver wants it."""
    kind = shop.kind

    async def waiting(conn):  # type: ignore[no-untyped-def]
        await conn.execute("DELETE FROM shop_effect")

    def blocking(conn):  # type: ignore[no-untyped-def]
        conn.execute("DELETE FROM shop_effect")

    function: Any = waiting if kind.is_async else blocking
    function.__annotations__ = {"conn": kind.connection}
    consumer.reset(function)


def events(count: int, start: int = 0) -> list[Message]:
    return [event(f"evt-{n}", payload={"n": n}) for n in range(start, start + count)]


async def handled(shop: Shop, consumer: Consumer, messages: list[Message]) -> None:
    for message in messages:
        await shop.settle(consumer, message)
