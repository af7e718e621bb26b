"""OpenTelemetry's metrics, from the same figures as Prometheus', and its traces (`oncebox[otel]`).

    async with app.running() as running, operations.watching(running), exporting(operations):
        ...

Names follow its conventions: `oncebox_messages_total` is `oncebox.messages`, and seconds are a unit, not part of
a name. Each process exports what it has counted itself; what the database shows is the same from all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
)

from oncebox.integrations.spans import trace, trace_headers
from oncebox.metrics import Operations
from oncebox.metrics.families import Family
from oncebox.metrics.figures import METRICS
from oncebox.runtime.meter import BUCKETS, LAG_BUCKETS

__all__ = ["exporting", "trace", "trace_headers"]

REFRESH_SECONDS = 5.0
_HISTOGRAMS = {
    "oncebox_processing_seconds": (BUCKETS, "timed"),
    "oncebox_lag_seconds": (LAG_BUCKETS, "lagged"),
}
"""Bounds, and how the meter tells of each figure as it happens."""


@asynccontextmanager
async def exporting(
    operations: Operations, provider: MeterProvider | None = None, *, refresh_seconds: float = REFRESH_SECONDS
) -> AsyncIterator[None]:
    """Have `provider`, by default the global one, export this process's metrics for the length of the block.

    Figures are taken every `refresh_seconds` and once more at the end; durations are recorded as they happen.
    """
    latest: dict[str, Family] = {}

    async def refresh() -> None:
        latest.update({family.name: family for family in await operations.families(own=True)})

    async def keep_refreshing() -> None:
        while True:
            await asyncio.sleep(refresh_seconds)
            await refresh()

    await refresh()
    _instruments(get_meter("oncebox", meter_provider=provider), operations, latest)
    task = asyncio.create_task(keep_refreshing())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await refresh()
        operations.meter.timed = operations.meter.lagged = None


def _instruments(meter: Meter, operations: Operations, latest: dict[str, Family]) -> None:
    for name, (kind, text) in METRICS.items():
        unit = "s" if name.endswith("_seconds") else "1"
        if kind == "histogram":
            bounds, told = _HISTOGRAMS[name]
            histogram = meter.create_histogram(
                _name(name), unit, text, explicit_bucket_boundaries_advisory=bounds
            )
            setattr(operations.meter, told, _recording(histogram))
            continue
        create = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        create(_name(name), [_observing(name, latest)], unit, text)


def _recording(histogram: Histogram) -> Callable[[str, str, float], None]:
    def record(consumer: str, kind: str, seconds: float) -> None:
        histogram.record(seconds, {"consumer": consumer, "type": kind})

    return record


def _observing(name: str, latest: dict[str, Family]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> list[Observation]:
        family = latest.get(name)
        return [Observation(each.value, dict(each.labels)) for each in family.samples] if family else []

    return observe


def _name(name: str) -> str:
    return "oncebox." + name.removeprefix("oncebox_").removesuffix("_total").removesuffix("_seconds")
