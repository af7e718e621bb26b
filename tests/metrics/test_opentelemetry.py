"""OpenTelemetry shows what Prometheus is shown."""

from datetime import UTC, datetime
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from oncebox import App, Message
from oncebox.integrations.opentelemetry import exporting
from oncebox.metrics import Operations
from oncebox.metrics.figures import METRICS

NOW = {"ce-time": datetime.now(UTC).isoformat()}
"""Says when a message was made, so that its age is known."""


def points(reader: InMemoryMetricReader) -> dict[str, tuple[str | None, list[Any]]]:
    """Unit and data points by name."""
    data = reader.get_metrics_data()
    assert data is not None
    ((scope,),) = [resource.scope_metrics for resource in data.resource_metrics]
    return {metric.name: (metric.unit, list(metric.data.data_points)) for metric in scope.metrics}


async def test_the_same_figures_by_names_of_its_own(sqlite_url: str) -> None:
    app = App(sqlite_url)
    billing = app.consumer("billing")

    @billing.handler("payment")
    async def paid(payment: dict[str, int]) -> None: ...

    operations = Operations(app)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with app.running() as running, operations.watching(running):
        async with exporting(operations, provider):
            for name in ("evt-1", "evt-2", "evt-1"):
                await billing.process(Message(id=name, type="payment", payload={}, headers=NOW))
        await app.aclose()
    found = points(reader)
    provider.shutdown()
    counts = {
        point.attributes["outcome"]: point.value for point in found["oncebox.messages"][1] if point.value
    }
    assert counts == {"processed": 2, "duplicate": 1}
    unit, (durations,) = found["oncebox.processing"]
    assert (unit, durations.count, dict(durations.attributes)) == (
        "s",
        2,
        {"consumer": "billing", "type": "payment"},
    )
    assert found["oncebox.oldest_waiting"][0] == "s"
    assert [point.value for point in found["oncebox.database_up"][1]] == [1]
    without_points = {"oncebox_dead"}
    assert len(found) == len(METRICS) - len(without_points)
