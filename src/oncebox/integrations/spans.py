"""OpenTelemetry's traces (`oncebox[otel]`): one span for each call of a handler, one for each batch that the relay
publishes, joined by the W3C trace context in the messages' headers.

    app = App("postgresql://localhost/shop", sink=rabbit.exchange("events"))
    trace(app)

Attributes are names, ids and counts. No payload, no other header and no error's text gets into a span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oncebox import __version__
from oncebox.app import App
from oncebox.brokers.contract import Sink
from oncebox.core.tracing import TRACE_HEADERS
from oncebox.core.work import Item
from oncebox.errors import Discard
from oncebox.message import Headers, Message

__all__ = ["trace", "trace_headers"]

LINKS_MAX = 128
"""As many messages of a batch as a span keeps by default."""
_CONTEXT = TraceContextTextMapPropagator()
_NOWHERE = Context()
_PLACES = ("queue", "topic", "stream", "subject")
"""What brokers call the place a message came from."""


def trace(app: App, provider: TracerProvider | None = None) -> None:
    """From its next start on, trace what `app` handles and publishes, through `provider` or the global one.

    What is handled becomes a child of where the message was made, a batch a span that links to each of its
    messages. What a handler publishes or sends was made in the handler's span.
    """
    tracer = get_tracer("oncebox", __version__, tracer_provider=provider)
    app.tracing = Spans(tracer)
    sinks = {id(sink): TracedSink(tracer, sink) for _, sink in app.sinks}
    app.sinks = tuple((pattern, sinks[id(sink)]) for pattern, sink in app.sinks)


def trace_headers() -> dict[str, str]:
    """The current span as headers, for a message that is published in a transaction of your own."""
    carrier: dict[str, str] = {}
    _CONTEXT.inject(carrier)
    return carrier


class Spans:
    """`oncebox.core.tracing.Tracing`, by OpenTelemetry."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def handling(self, consumer: str, items: Sequence[Item], idempotency_key: str | None) -> Iterator[None]:
        messages = [item.whole or item.message for item in items]
        operation = "process" if idempotency_key is None else "effect"
        attributes: dict[str, Any] = {
            **_messaging(operation, "process", _place(messages[0]) or consumer, messages),
            "messaging.consumer.group.name": consumer,
            "oncebox.attempt": 1 + items[0].attempts + items[0].deaths,
        }
        if idempotency_key is not None:
            attributes["oncebox.idempotency_key"] = idempotency_key
        name = f"{operation} {consumer}"
        # Who calls `process` in a span of its own goes on in it, unless the message says where it was made.
        around = get_current()
        with _begun(self._tracer, name, SpanKind.CONSUMER, messages, attributes, around) as span:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, Discard):
                    _failed(span, error)
                raise

    def carried(self) -> Headers | None:
        if not get_current_span().get_span_context().is_valid:
            return None
        return tuple((name, value.encode()) for name, value in trace_headers().items())


class TracedSink:
    """A sink, and a span around each batch that it is given."""

    def __init__(self, tracer: Tracer, sink: Sink) -> None:
        self._tracer = tracer
        self._sink = sink
        self.name = sink.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    async def open(self) -> None:
        """See `Sink.open`."""
        await self._sink.open()

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._sink.close()

    async def publish(self, messages: Sequence[Message]) -> list[BaseException | None]:
        """See `Sink.publish`."""
        attributes = _messaging("publish", "send", self.name, messages)
        with _begun(self._tracer, f"publish {self.name}", SpanKind.PRODUCER, messages, attributes) as span:
            try:
                replies = await self._sink.publish(messages)
            except BaseException as error:
                _failed(span, error)
                raise
            refused = [reply for reply in replies if reply is not None]
            if refused:
                span.set_attribute("oncebox.refused", len(refused))
                _failed(span, refused[0])
            return replies


@contextmanager
def _begun(
    tracer: Tracer,
    name: str,
    kind: SpanKind,
    messages: Sequence[Message],
    attributes: Mapping[str, Any],
    around: Context = _NOWHERE,
) -> Iterator[Span]:
    """A span that goes on from its one message's trace, or that links to those of many; current meanwhile."""
    made = [_made_in(message) for message in messages[:LINKS_MAX]]
    alone = len(messages) == 1
    parent = made[0] if alone and made[0] else around
    links = _links([around] if parent is not around else [] if alone else made)
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        # An exception's text may quote a payload.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def _made_in(message: Message) -> Context:
    carrier = {
        name: value.decode("latin-1") for name in TRACE_HEADERS if (value := message.header(name)) is not None
    }
    return _CONTEXT.extract(carrier, _NOWHERE) if carrier else _NOWHERE


def _links(made: Sequence[Context]) -> list[Link]:
    spans = [get_current_span(context).get_span_context() for context in made]
    return [Link(span) for span in spans if span.is_valid]


def _messaging(operation: str, kind: str, place: str, messages: Sequence[Message]) -> dict[str, Any]:
    """OpenTelemetry's conventions for messaging, as far as they apply."""
    attributes: dict[str, Any] = {
        "messaging.system": "oncebox",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": place,
    }
    if len(messages) == 1:
        [message] = messages
        attributes["messaging.message.id"] = message.id
        attributes["messaging.message.body.size"] = len(message.payload)
        attributes["oncebox.type"] = message.type
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes


def _place(message: Message) -> str | None:
    found = (message.provenance.get(name) for name in _PLACES)
    return next((str(place) for place in found if place), None)


def _failed(span: Span, error: BaseException) -> None:
    kind = type(error)
    span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
    span.set_status(Status(StatusCode.ERROR))
