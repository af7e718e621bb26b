"""Inline and in order: what kills its process is counted like any other, and blocks its key when it is given up."""

from functools import partial
from typing import Any

import pytest

from oncebox import Consumer, Message, Status
from oncebox.core.keys import stuck_keys
from oncebox.core.ordered import deliver_in_order
from oncebox.core.outcomes import Outcome, Reason
from oncebox.core.reap import reap_lapsed
from oncebox.errors import DatabaseUnavailable
from tests.core.deaths import beating, killed_at_handle
from tests.core.fixtures import inline
from tests.core.kit import Shop
from tests.order.lines import BY_KEY, BY_SEQUENCE, applied, case, note

pytestmark = inline


def markers(shop: Shop) -> int:
    """How many messages workers say they have in hand."""
    return int(shop.rows(f"SELECT count(*) FROM {shop.table('hand')} WHERE message_id IS NOT NULL")[0][0])


async def deliver(shop: Shop, consumer: Consumer, message: Message) -> Outcome | None:
    item = consumer.intake.from_message(message)
    await shop.perform(consumer, partial(deliver_in_order, item=item), slot=3)
    return item.outcome


async def die_with(shop: Shop, consumer: Consumer, message: Message) -> int:
    """Have a worker die with it in hand; how many deaths were counted."""
    item = consumer.intake.from_message(message)
    await shop.perform(consumer, beating, slot=1)
    with pytest.raises(DatabaseUnavailable):
        await shop.perform(consumer, partial(deliver_in_order, item=item), slot=1, through=killed_at_handle)
    return await shop.perform(consumer, lambda work: reap_lapsed(work, -1.0), slot=2)


@pytest.mark.parametrize("order", [BY_KEY, BY_SEQUENCE], ids=["by key", "by sequence"])
@pytest.mark.parametrize("on_dead", ["block", "skip"])
async def test_what_is_given_up_for_its_deaths_blocks_its_key(
    shop: Shop, order: dict[str, Any], on_dead: str
) -> None:
    cases = shop.consumer(on_dead=on_dead, **order)
    shop.handler(cases)(note)
    # Whoever had it first was not marked; that somebody had, the broker's count says.
    last = 1 + cases.policy.crash_limit
    for deliveries in range(2, last):
        assert await die_with(shop, cases, case("a", 1, deliveries=deliveries)) == 1
    outcome = await deliver(shop, cases, case("a", 1, deliveries=last))
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (Status.DEAD, Reason.CRASH_LOOP)
    assert markers(shop) == 0
    await deliver(shop, cases, case("a", 2))
    stuck = await shop.perform(cases, lambda work: stuck_keys(work.queries))
    if on_dead == "block":
        assert ([each.key for each in stuck], applied(shop, "a")) == (["a"], [])
    else:
        assert (stuck, applied(shop, "a")) == ([], [2])


async def test_a_suspect_that_need_not_run_leaves_no_marker(shop: Shop) -> None:
    cases = shop.consumer(**BY_KEY)
    shop.handler(cases, "paid")(note)
    await deliver(shop, cases, case("a", 1))
    for message in (
        case("a", 1, deliveries=2),  # known
        case("a", 2, deliveries=2),
        case("a", 3, deliveries=2, type="unheard of"),
        case("a", 4, deliveries=2),  # behind one that blocks
    ):
        await deliver(shop, cases, message)
        assert markers(shop) == 0
    assert (applied(shop, "a"), shop.count("dead"), shop.count("queue")) == ([1, 2], 1, 1)
