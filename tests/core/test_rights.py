"""PostgreSQL: the end of a transaction needs no rights that the handler's role, or the app's, may lack."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from oncebox import Backoff, Status
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect, event

pytestmark = [on("psycopg", "psycopg-async", "asyncpg"), inline]


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as server:
        for statement in statements:
            server.execute(statement.encode())


@pytest.fixture
def role(shop: Shop, shop_url: str) -> Iterator[str]:
    """A role that may write effects, and knows nothing of oncebox."""
    name = "tenant_of_test_rights"
    run(
        shop_url,
        f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"GRANT ALL ON shop_effect TO {name}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}",
    )
    yield name
    run(shop_url, f"DROP OWNED BY {name}")


@pytest.mark.parametrize("scope", ["LOCAL", "SESSION"])
@pytest.mark.parametrize("result", [None, {"kept": 1}])
async def test_a_handler_may_take_another_role(
    shop: Shop, role: str, scope: str, result: dict[str, int] | None
) -> None:
    billing = shop.consumer(retry=Backoff(attempts=1))

    @shop.handler(billing)
    async def as_tenant(call: Call) -> object:
        await call.db.run(f"SET {scope} ROLE {role}")
        await effect(call)
        if scope == "SESSION":
            await call.db.run("RESET ROLE")
        return result

    outcomes = await shop.settle_all(billing, [event(f"m-{n}") for n in range(3)])
    assert {each.status for those in outcomes.values() for each in those} == {Status.PROCESSED}
    assert shop.effects() == {f"m-{n}": 1 for n in range(3)}


async def test_a_role_that_may_not_call_the_closing_procedure_closes_without_it(
    shop: Shop, role: str, shop_url: str
) -> None:
    tables = f"GRANT ALL ON ALL TABLES IN SCHEMA oncebox TO {role}"
    run(
        shop_url,
        f"GRANT USAGE ON SCHEMA oncebox TO {role}",
        tables,
        tables.replace("TABLES", "SEQUENCES"),
        "REVOKE EXECUTE ON PROCEDURE oncebox.finished(text) FROM PUBLIC",
    )
    parts = urlsplit(shop_url)
    theirs = Shop(
        shop.kind.name, parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl(), "inline",
        seen=shop_url,
    )  # fmt: skip
    try:
        billing = theirs.consumer(retry=Backoff(attempts=1))
        theirs.handler(billing)(effect)
        assert (await theirs.settle(billing, event())).status is Status.PROCESSED
        assert theirs.effects() == {"evt-1": 1}
    finally:
        await theirs.close()
        run(shop_url, "GRANT EXECUTE ON PROCEDURE oncebox.finished(text) TO PUBLIC")
