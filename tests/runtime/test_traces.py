"""Traces by OpenTelemetry: producer, handler, relay and the next consumer are one trace, whoever runs what."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from oncebox import Backoff, Outbox
from oncebox import Call as EffectCall
from oncebox.brokers.memory import Memory
from oncebox.errors import BrokerError, Discard
from oncebox.integrations.opentelemetry import trace, trace_headers
from tests.core.fixtures import inline, on
from tests.core.kit import Call, Shop, effect, event
from tests.outgoing.kit import ScriptedSink, put_slots_back, relay
from tests.waiting import eventually_async

EVERY_WAY = on("sqlite", "sqlite-async", "psycopg", "psycopg-async")
SECRET = "canary-5f3a"


class Traces:
    """Where spans end up."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("shop")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    made.provider.shutdown()


def place(span: Any) -> tuple[int, int]:
    context = span.get_span_context()
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


@EVERY_WAY
async def test_producer_handler_relay_and_the_next_consumers_are_one_trace(
    kind: str, mode: str, shop_url: str, traces: Traces
) -> None:
    memory = Memory()
    memory.queue("receipts")
    memory.bind("events", "receipts")
    shop = Shop(kind, shop_url, mode, sink=memory.topic("events"), source="shop")
    put_slots_back(shop)
    trace(shop.app, traces.provider)
    inner: list[tuple[int, int]] = []

    async def paid(call: Call) -> None:
        with traces.tracer.start_as_current_span("the handler's own") as span:
            inner.append(place(span))
            call.tx.publish("receipt", {"n": 1})
            call.tx.send("archive", "receipt", {"n": 1})
        await call.db.effect(call.message.id)

    shop.handler(shop.consumer("billing", memory.queue("payments")), "paid")(paid)
    shop.handler(shop.consumer("mailer", memory.queue("receipts")), "receipt")(effect)
    shop.handler(shop.consumer("archive", mode="stored"), "receipt")(effect)
    try:
        async with shop.app.running():
            with traces.tracer.start_as_current_span("order placed") as producer:
                memory.put("payments", event(headers=trace_headers()))
            names = ("process billing", "publish events", "process mailer", "process archive")
            await eventually_async(lambda: all(traces.named(name) for name in names), 30)
    finally:
        await shop.close()
    billing, sending, mailer, archive = (traces.one(name) for name in names)
    assert parent(billing) == place(producer)
    assert parent(traces.one("the handler's own")) == place(billing)
    # Made in the handler's innermost span; the relay sends it later, and the consumer goes on from where it was made.
    assert [parent(span) for span in (sending, mailer, archive)] == [inner[0]] * 3
    assert (billing.kind, sending.kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER)
    assert dict(billing.attributes or {}) == {
        "messaging.system": "oncebox",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "payments",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": "evt-1",
        "messaging.message.body.size": 2,
        "oncebox.type": "paid",
        "oncebox.attempt": 1,
    }
    assert billing.status.status_code is StatusCode.UNSET


@EVERY_WAY
async def test_each_attempt_is_a_span_and_an_error_is_named_without_its_text(
    shop: Shop, traces: Traces
) -> None:
    trace(shop.app, traces.provider)
    billing = shop.consumer(retry=Backoff(attempts=5, base_seconds=0, max_seconds=0))
    failing = [ValueError(SECRET), KeyError(SECRET)]

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> None:
        if failing:
            raise failing.pop(0)
        if call.message.id == "evt-2":
            raise Discard("not wanted")

    for _ in range(3):
        await shop.settle(billing, event(payload={"card": SECRET}, headers={"authorization": SECRET}))
    await shop.settle(billing, event("evt-2"))
    spans = traces.named("process billing")
    said = [((span.attributes or {}).get("error.type"), span.status.status_code) for span in spans]
    ok = (None, StatusCode.UNSET)
    assert said == [
        ("builtins.ValueError", StatusCode.ERROR),
        ("builtins.KeyError", StatusCode.ERROR),
        ok,
        ok,
    ]
    assert all(span.status.description is None for span in spans)
    assert SECRET not in "".join(span.to_json() for span in spans)


@inline
@EVERY_WAY
async def test_a_batch_is_a_trace_of_its_own_that_links_to_its_messages(shop: Shop, traces: Traces) -> None:
    trace(shop.app, traces.provider)
    memory = Memory()
    billing = shop.consumer("billing", memory.queue("payments"), batch=10, concurrency=1)
    seen: list[str] = []

    @shop.batch_handler(billing, "paid")
    async def paid(call: Call) -> None:
        seen.extend(message.id for message in call.message)

    made = []
    for number in range(3):
        with traces.tracer.start_as_current_span("order placed") as producer:
            made.append(place(producer))
            memory.put("payments", event(f"evt-{number}", headers=trace_headers()))
    memory.put("payments", event("evt-3"))
    async with shop.app.running():
        await eventually_async(lambda: len(seen) == 4, 30)
    spans = traces.named("process billing")
    joined = [(link.context.trace_id, link.context.span_id) for span in spans for link in span.links]
    joined += [where for span in spans if (where := parent(span)) is not None]
    assert sorted(joined) == sorted(made), "by a link from a batch, or as the parent of a message alone"
    counts = [(span.attributes or {}).get("messaging.batch.message_count", 1) for span in spans]
    assert sum(counts) == 4  # type: ignore[arg-type]


@on("sqlite", "sqlite-async")
async def test_an_effect_is_a_span_with_its_idempotency_key(kind: str, shop_url: str, traces: Traces) -> None:
    shop = Shop(kind, shop_url, "stored")
    trace(shop.app, traces.provider)
    memory = Memory()
    mailer = shop.app.consumer("mailer", memory.queue("receipts"), mode="stored")
    keys: list[str] = []

    def receipt(payload: dict[str, Any], call: EffectCall) -> None:
        keys.append(call.idempotency_key)

    async def receipt_async(payload: dict[str, Any], call: EffectCall) -> None:
        receipt(payload, call)

    mailer.effect("receipt", on_unknown="park")(receipt_async if shop.kind.is_async else receipt)
    try:
        async with shop.app.running():
            memory.put("receipts", event(type="receipt"))
            await eventually_async(lambda: traces.named("effect mailer"), 30)
    finally:
        await shop.close()
    span = traces.one("effect mailer")
    assert span.attributes is not None
    assert [span.attributes["oncebox.idempotency_key"]] == keys
    assert span.attributes["messaging.operation.name"] == "effect"


@on("sqlite")
async def test_a_batch_of_the_relay_links_to_what_it_sends_and_says_how_much_was_refused(
    kind: str, shop_url: str, traces: Traces
) -> None:
    sink = ScriptedSink("events")
    sink.judge = lambda message: BrokerError(SECRET) if message.id == "b" else None
    shop = Shop(kind, shop_url, sink=sink)
    trace(shop.app, traces.provider)
    made = []
    outbox = Outbox("shop")

    async def publishing(call: Call) -> None:
        for id_ in "abc":
            with traces.tracer.start_as_current_span("made") as span:
                made.append(place(span))
                call.tx.publish("receipt", {"card": SECRET}, id=id_)
        with traces.tracer.start_as_current_span("made elsewhere") as span:
            made.append(place(span))
            outbox.publish(call.db.raw, "receipt", {}, id="d", headers=trace_headers())

    shop.handler(billing := shop.consumer(), "paid")(publishing)
    try:
        await shop.settle(billing, event())
        async with relay(shop, shop.app.sinks[0][1]) as working:
            await working.turn()
    finally:
        await shop.close()
    span = traces.named("publish events")[0]
    assert sorted((link.context.trace_id, link.context.span_id) for link in span.links) == sorted(made)
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 4
    assert (span.attributes["oncebox.refused"], span.attributes["error.type"]) == (
        1,
        "oncebox.errors.BrokerError",
    )
    assert parent(span) is None
    assert SECRET not in "".join(each.to_json() for each in traces.exporter.get_finished_spans())


@inline
@on("sqlite-async")
async def test_a_call_of_process_goes_on_in_the_callers_span(shop: Shop, traces: Traces) -> None:
    trace(shop.app, traces.provider)
    billing = shop.consumer()
    shop.handler(billing, "paid")(effect)
    with traces.tracer.start_as_current_span("request") as request:
        await billing.process(event("evt-1"))
        await billing.process(
            event("evt-2", headers={"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"})
        )
        await billing.process(event("evt-3", headers={"traceparent": b"\xff nonsense"}))
    first, second, third = traces.named("process billing")
    assert (parent(first), first.links) == (place(request), ())
    assert parent(second) == (int("ab" * 16, 16), int("cd" * 8, 16))
    assert [(link.context.trace_id, link.context.span_id) for link in second.links] == [place(request)]
    assert parent(third) == place(request)


@inline
@on("sqlite")
async def test_a_handler_in_the_callers_transaction_is_a_span_of_the_callers(
    shop: Shop, traces: Traces
) -> None:
    trace(shop.app, traces.provider)
    billing = shop.consumer()

    @shop.handler(billing, "paid")
    async def paid(call: Call) -> None: ...

    path = urlsplit(shop._url).path.removeprefix("/")
    request_span = traces.tracer.start_as_current_span("request")
    with closing(sqlite3.connect(path)) as connection, request_span as request:
        for _ in range(2):
            billing.process_sync(event(), connection)
            connection.commit()
    assert parent(traces.one("process billing")) == place(request), "and none for the duplicate"


def test_without_it_opentelemetry_is_not_even_imported() -> None:
    code = """
import sys, oncebox, oncebox.cli, oncebox.testing
from oncebox.cli import run
from oncebox.runtime import performer, relay, running
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
