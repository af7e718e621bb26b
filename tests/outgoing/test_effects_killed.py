"""Effects: what is refused at registration, and a kill before and after every step."""

from typing import Any

import pytest

from oncebox import Tx
from oncebox.core.effects import Call
from oncebox.errors import HandlerError
from tests.core.fixtures import stored
from tests.core.kit import Shop
from tests.outgoing.abandon import Abandoned
from tests.outgoing.calls import Mailer, Provider

pytestmark = stored


async def test_what_an_effect_cannot_have_is_refused_by_name(shop: Shop) -> None:
    mailer = shop.consumer("mailer", mode="stored")
    inliner = shop.consumer("inliner", mode="inline")

    def with_tx(tx: Tx) -> None: ...
    def with_call(call: Call) -> None: ...
    def with_connection(conn: Any) -> None: ...

    with_connection.__annotations__["conn"] = shop.kind.connection

    with pytest.raises(HandlerError, match=r"parameter 'tx'.*takes Call and not Tx"):
        mailer.effect("a")(with_tx)
    with pytest.raises(HandlerError, match=r"parameter 'call': Call is for effects; a handler takes Tx"):
        mailer.handler("b")(with_call)
    with pytest.raises(HandlerError, match=r"parameter 'conn'"):
        mailer.effect("c")(with_connection)
    with pytest.raises(HandlerError, match=r"consumer 'inliner': an effect needs mode=\"stored\""):
        inliner.effect("d")
    with pytest.raises(HandlerError, match="an effect names its types"):
        mailer.effect()
    with pytest.raises(HandlerError, match="one of retry, reconcile, park"):
        mailer.effect("e", on_unknown="guess")  # type: ignore[arg-type]
    with pytest.raises(HandlerError, match="go together"):
        mailer.effect("f", on_unknown="reconcile")
    with pytest.raises(HandlerError, match="key_ttl=0"):
        mailer.effect("g", key_ttl=0)

    async def hook(payload: Any, call: Any) -> None: ...

    with pytest.raises(HandlerError, match="is async def, and the effect is def"):
        mailer.effect("h", on_unknown="reconcile", reconcile=hook)(with_call)


@pytest.mark.parametrize("policy", ["park", "retry"])
async def test_killed_before_or_after_any_step_nothing_is_called_twice_without_policy(
    shop: Shop, policy: str
) -> None:
    provider = Provider()
    mailer = Mailer(shop, provider, on_unknown=policy)
    number, reached = 0, True
    while reached:
        number += 1
        assert number < 40
        for when in ("before", "after"):
            name = f"e{number}-{when}"
            await mailer.receive(name)
            cut = Abandoned(number, when)
            await mailer.work(slot=1, through=cut)
            reached = cut.died
            for _ in range(3):
                mailer.lapse()
                await mailer.work(slot=2)
            effect = mailer.effect(name)
            assert effect is not None, name
            assert not mailer.is_queued(), name
            calls = [key for id_, key in provider.calls if id_ == name]
            if policy == "park":
                assert len(calls) <= 1, name
                assert effect[0] in ("done", "parked"), name
                assert effect[0] == "parked" or len(calls) == 1, name
            else:
                assert effect[0] == "done", name
                assert calls, name
                assert len(set(calls)) == 1, name
    assert number > 8
