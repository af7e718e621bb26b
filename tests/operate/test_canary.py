"""A secret in payloads, headers, connection strings and addresses is in no log, metric, trace, answer, error text or
command output, whatever comes of the messages; it is shown where payloads were asked for."""

import asyncio
import re
import secrets
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import psycopg
import pytest

from oncebox import Message
from oncebox.brokers.memory import Memory
from oncebox.schema import migrate
from tests.cli.inside import inside
from tests.cli.kit import Running, oncebox
from tests.metrics.kit import Series, parse
from tests.waiting import eventually_async

SHOP = '''\
import os

import msgspec
import pydantic
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from oncebox import App, Backoff, Call, Dead, Tx
from oncebox.brokers.remote import RemoteMemory
from oncebox.errors import BrokerError
from oncebox.integrations.opentelemetry import trace
from oncebox.webhooks import Webhooks, token

if os.environ["SHOP_URL"].startswith("sqlite"):
    from sqlite3 import Connection, IntegrityError

    PAY = "INSERT INTO paid VALUES (?)"
else:
    from psycopg import Connection, IntegrityError

    PAY = "INSERT INTO paid VALUES (%s)"


class Refusing:
    """A broker that takes nothing of us."""

    name = "refusing"

    async def open(self): ...

    async def close(self): ...

    async def publish(self, messages):
        return [BrokerError("refused") for _ in messages]


remote = RemoteMemory(os.environ["SHOP_BROKER"])
sinks = {"receipt": remote.topic("events"), "refused": Refusing()}
app = App(os.environ["SHOP_URL"], sink=sinks, drain_seconds=30)
twice = Backoff(attempts=2, base_seconds=0, max_seconds=0)
keeping = {"retry": twice, "keep_payload": "always", "replay": "rebuild"}
billing = app.consumer("billing", remote.queue("payments"), mode=os.environ["SHOP_MODE"], **keeping)
lines = app.consumer("lines", remote.queue("lines"), mode="stored", order_by="key", retry=twice)
mailer = app.consumer("mailer", mode="stored", retry=twice)
Webhooks(app).add("/hook", billing, verify=token(os.environ["SHOP_TOKEN"]))

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=open("spans.json", "a"))))
trace(app, provider)


@billing.handler("paid")
def paid(payment: dict, conn: Connection, tx: Tx) -> None:
    conn.execute(PAY, (payment["card"],))
    for kind in ("receipt", "refused", "nowhere"):
        tx.publish(kind, payment, headers={"authorization": payment["card"]})
    for kind in ("unknown", "failing"):
        tx.send("mailer", kind, payment)


@billing.handler("taken")
def taken(payment: dict, conn: Connection) -> None:
    conn.execute(PAY, (payment["card"],))


@billing.handler("swallowed")
def swallowed(payment: dict, conn: Connection) -> None:
    try:
        conn.execute(PAY, (payment["card"],))
    except IntegrityError:
        pass


@billing.handler("refused")
def refused(payment: dict) -> None:
    raise Dead("no such account")


@billing.handler("says")
def says(payment: dict) -> None:
    raise ValueError(payment["said"])


class Struct(msgspec.Struct):
    card: int


class Model(pydantic.BaseModel):
    card: int


@billing.handler("struct")
def struct(payment: Struct) -> None: ...


@billing.handler("model")
def model(payment: Model) -> None: ...


@lines.handler("line")
def line(payment: dict) -> None:
    raise Dead("no such line")


@mailer.effect("unknown", on_unknown="park")
def unknown(payment: dict, call: Call) -> None:
    raise ConnectionResetError


@mailer.effect("failing", on_unknown="park")
def failing(payment: dict, call: Call) -> None:
    raise ValueError
'''

PURGE = ("purge", "--dry-run", "--consumer", "billing", "--retention", "30d")
DEAD = ("taken", "refused", "says", "struct", "model", "bytes", "stranger")


def dead(series: Series) -> float:
    return sum(value for (name, _), value in series.items() if name == "oncebox_dead")


async def test_a_secret_is_shown_only_where_payloads_are_asked_for(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "stored" if database_url.startswith("sqlite") else "inline"
    card, said, password, hook = (
        f"{name}-{secrets.token_hex(6)}" for name in ("card", "said", "pass", "hook")
    )
    secret_url = database_url
    if database_url.startswith("postgresql"):
        # The server trusts the loopback, so that any password will do.
        secret_url = database_url.replace("@", f":{password}@", 1)
        with psycopg.connect(database_url) as connection:
            connection.execute("CREATE TABLE paid (card text UNIQUE)")
    await asyncio.to_thread(migrate, database_url)
    if database_url.startswith("sqlite"):
        with sqlite3.connect(database_url.removeprefix("sqlite:///")) as lite:
            lite.execute("CREATE TABLE paid (card text UNIQUE)")
        lite.close()
    (tmp_path / "shop.py").write_text(SHOP)
    memory = Memory()
    memory.queue("payments")
    memory.queue("lines")
    memory.queue("receipts")
    memory.bind("events", "receipts")
    answers: list[str] = []
    async with memory.serve() as address:
        env = {"SHOP_URL": secret_url, "SHOP_BROKER": address, "SHOP_MODE": mode, "SHOP_TOKEN": hook}
        words = ("shop:app", "--http", "127.0.0.1:0", "--log-level", "debug", "--log-json")
        with Running(*words, cwd=tmp_path, env=env) as running:
            await running.says("serving http://")
            found = re.search(r"serving (http://[\w.:]+)", running.log)
            assert found is not None
            headers = {"authorization": card, "x-note": card}

            def put(id_: str, kind: str, payload: object, queue: str = "payments", **words: str) -> None:
                message = Message(id=id_, type=kind, payload=payload, headers=headers, **words)  # type: ignore[arg-type]
                memory.put(queue, message)

            async with httpx.AsyncClient(base_url=found[1], timeout=60) as http:

                async def scraped() -> Series:
                    answer = await http.get("/metrics")
                    answers.append(answer.text)
                    return parse(answer.text)

                async def shows(dead_ones: int) -> None:
                    async with asyncio.timeout(80):
                        while dead(await scraped()) < dead_ones:
                            pass

                put("paid", "paid", {"card": card})
                await eventually_async(lambda: memory.stats()["receipts"].depth == 1, 60)
                for kind in ("taken", "swallowed", "refused", "struct", "model"):
                    put(kind, kind, {"card": card})
                put("says", "says", {"card": card, "said": said})
                put("bytes", "paid", b"\xff" + card.encode())
                put("stranger", "stranger", {"card": card})
                put("line", "line", {"card": card}, "lines", key="k")
                put("behind", "line", {"card": card}, "lines", key="k")
                put("paid", "paid", {"card": card})
                put("paid", "paid", {"card": card, "other": True})
                body = {"card": card}
                for authorization in (f"Bearer {card}", f"Bearer {hook}"):
                    hook_headers = {"authorization": authorization, "ce-id": "hooked", "ce-source": "s"}
                    answer = await http.post(
                        "/hook",
                        json=body,
                        headers={**hook_headers, "ce-specversion": "1.0", "ce-type": "refused"},
                    )
                    answers.append(f"{answer.headers}{answer.text}")
                # The types' own, the failing effect, the conflict and the webhook's; a stranger's waits where it is
                # stored, and what swallowed its database's error is dead in both.
                stored = mode == "stored"
                await shows(len(DEAD) + 5 - stored)
                await eventually_async(lambda: _parked(database_url) == (2, 1), 60)
                answers += [(await http.get(path)).text for path in ("/healthz", "/readyz", "/", "/hook")]
            running.signal(signal.SIGUSR1)
            await running.says("Task receiving from payments")
            running.signal(signal.SIGTERM)
            assert await running.ends() == 0
        secret = address.rsplit("/", 1)[1]
    log = running.log + running.out
    spans = (tmp_path / "spans.json").read_text()
    assert "process billing" in spans
    assert "effect mailer" in spans
    assert "is dead" in log
    for text in (log, spans, *answers):
        for word in (card, said, password, hook, secret):
            assert word not in text, _around(text, word)

    monkeypatch.chdir(tmp_path)
    shown = [("show", id_) for id_ in ("paid", "swallowed", *DEAD, "line", "behind", "hooked")]
    discard = (
        "dead",
        "discard",
        "stranger" if mode == "inline" else "struct",
        "--reason",
        "a test",
        "--by",
        "me",
    )
    done = await asyncio.to_thread(inside, *discard, "--database", secret_url)
    assert done.code == 0, done
    lists = [
        ("audit",),
        ("doctor",),
        ("partition",),
        ("dead", "list"),
        ("keys", "list"),
        ("outbox", "list"),
        ("effects", "list"),
        PURGE,
    ]
    for asked in [*shown, *lists, ("status",), ("migrate",)]:
        for form in ((), ("--json",)):
            done = await asyncio.to_thread(inside, *asked, *form, "--database", secret_url)
            # The doctor's says how bad it is.
            assert done.code in (0, 1) or asked == ("doctor",), (asked, done)
            text = done.out + done.err
            for word in (card, password, hook, secret):
                assert word not in text, (asked, form, _around(text, word))
    for asked in (("--shadow",), ("--shadow", "--json")):
        done = await asyncio.to_thread(
            oncebox, "replay", "shop:app", "billing", *asked, cwd=tmp_path, env=env
        )
        text = done.out + done.err
        assert re.search("IntegrityError|UniqueViolation", text), "it ran, and met what is there already"
        for word in (card, password, hook, secret):
            assert word not in text, (asked, _around(text, word))
    _age(database_url)
    archived = ("--consumer", "billing", "--retention", "30d", "--archive", str(tmp_path / "archive"))
    purged = await asyncio.to_thread(inside, "purge", *archived, "--json", "--database", secret_url)
    listed = await asyncio.to_thread(inside, "archive", "list", "--at", str(tmp_path / "archive"))
    assert (purged.code, listed.code) == (0, 0), (purged, listed)
    assert '"archived"' in purged.out, "something was archived"
    for text in (purged.out + purged.err, listed.out + listed.err):
        for word in (card, password, hook, secret):
            assert word not in text, _around(text, word)
    nobody = f"postgresql://shop:{password}@127.0.0.1:1/shop"
    for asked in (("status",), ("show", "paid"), ("dead", "list"), ("migrate",)):
        done = await asyncio.to_thread(inside, *asked, "--database", nobody)
        assert done.code != 0
        assert password not in done.out + done.err
    asked_for = await asyncio.to_thread(inside, "show", "model", "--payload", "--database", secret_url)
    assert card in asked_for.out, "the payload is there, and shown to whoever asks for it"


def _parked(url: str) -> tuple[int, int]:
    """Outgoing messages that failed, and calls whose end nobody knows."""
    texts = (
        "SELECT count(*) FROM {}outbox WHERE state = 2 OR attempts > 0",
        "SELECT count(*) FROM {}effect WHERE state = 'parked'",
    )
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite:
            outgoing, effects = (lite.execute(text.format("oncebox_")).fetchone()[0] for text in texts)
        return outgoing, effects
    with psycopg.connect(url) as connection:
        found = [connection.execute(text.format("oncebox.").encode()).fetchall() for text in texts]
    return found[0][0][0], found[1][0][0]


def _age(url: str) -> None:
    """Everything in the ledger was finished forty days ago."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as lite:
            lite.execute("UPDATE oncebox_ledger SET received = received - 3456000000000")
            lite.execute("UPDATE oncebox_ledger SET finished = received")
        return
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE oncebox.ledger SET received = received - interval '40 days'")
        connection.execute("UPDATE oncebox.ledger SET finished = received")


def _around(text: str, word: str) -> str:
    at = text.index(word)
    return text[max(0, at - 300) : at + 100]
