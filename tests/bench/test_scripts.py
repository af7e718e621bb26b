"""What the C client runs is what oncebox runs."""

import pytest

from benchmarks.contenders.pgbench import PLAIN, Pgbench
from benchmarks.stage import Stage
from tests.servers import Postgres

MESSAGES = 200


@pytest.mark.parametrize("script", [*PLAIN, "same_sql", "same_sql_chained", "same_sql_batch"])
async def test_every_message_of_a_script_has_its_effect(postgres: Postgres, script: str) -> None:
    with Stage(postgres.url()) as stage:
        contender = Pgbench(script)
        await contender.open(stage)
        try:
            assert await contender.run(contender.load.make(MESSAGES)) > 0
        finally:
            await contender.close()
        assert stage.balance() == MESSAGES
        [(claims,)] = stage.observer.execute("SELECT count(*) FROM oncebox.ledger").fetchall()
        assert claims == (MESSAGES if script.startswith("same_sql") else 0)
