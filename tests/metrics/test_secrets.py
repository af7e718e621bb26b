"""A secret in payload, headers and connection string is in no metric, answer or log line."""

import signal
from pathlib import Path

import psycopg

from oncebox import Message
from tests.metrics.kit import messages, open_shop

CANARY = "canary-5f3a"


async def test_secrets_stay_where_they_are(pg_url: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_url) as database:
        database.execute("CREATE TABLE paid (id text)")
    # The server trusts the loopback, so that any password will do.
    secret_url = pg_url.replace("@", f":{CANARY}@", 1)
    assert CANARY in secret_url
    headers = ((f"x-{CANARY}", CANARY.encode()), ("authorization", CANARY.encode()))
    bodies = [{"card": CANARY}, {"bad": True, "card": CANARY}, f"{CANARY}".encode(), {"card": CANARY}]
    async with open_shop(
        tmp_path, pg_url, "--log-level", "debug", "--log-json", mode="stored", run_url=secret_url
    ) as shop:
        shop.memory.put(
            "payments",
            *(
                Message(id=f"m-{n}", type="payment", payload=body, headers=headers)
                for n, body in enumerate([*bodies, bodies[0]])
            ),
            Message(id="m-0", type="payment", payload={"other": CANARY}),
            Message(id="m-9", type=CANARY, payload={}),
        )
        await shop.scrape_until(lambda series: messages(series).get("dead", 0) >= 2)
        paths = ("/metrics", "/healthz", "/readyz", "/", "/metrics/x")
        answers = [await shop.get(path) for path in paths]
        shop.running.signal(signal.SIGTERM)
        assert await shop.running.ends() == 0
        spoken = [*(f"{answer.headers}{answer.text}" for answer in answers), shop.running.out]
        assert not [text for text in spoken if CANARY in text]
        assert "m-1 is dead" in shop.running.log
        assert [line for line in shop.running.log.splitlines() if CANARY in line] == []
