"""How old a message is when its effects are committed: the same in Prometheus and OpenTelemetry."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from oncebox import App, Message
from oncebox.brokers.memory import Memory
from oncebox.integrations.opentelemetry import exporting
from oncebox.metrics import Operations
from oncebox.metrics.families import render
from oncebox.metrics.sharing import Shared
from oncebox.runtime.meter import Meter
from oncebox.schema import migrate
from tests.metrics.kit import parse
from tests.waiting import eventually_async

LABELS = (("consumer", "billing"), ("type", "payment"))


def made(id_: str, ago_seconds: float) -> Message:
    at = datetime.now(UTC) - timedelta(seconds=ago_seconds)
    return Message(id=id_, type="payment", payload={}, headers={"ce-time": at.isoformat()})


@pytest.mark.parametrize("mode", ["inline", "stored"])
async def test_is_counted_once_for_what_was_processed(sqlite_url: str, mode: str) -> None:
    migrate(sqlite_url)
    app = App(sqlite_url)
    memory = Memory()
    billing = app.consumer("billing", memory.queue("payments"), mode=mode)

    @billing.handler("payment")
    async def paid(payment: dict[str, int]) -> None: ...

    operations, reader = Operations(app), InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with app.running() as running, operations.watching(running), exporting(operations, provider):
        memory.put("payments", made("old", 1000), made("old", 1000), made("ahead", -50))
        memory.put("payments", Message(id="nobody-knows", type="payment", payload={}))
        await eventually_async(lambda: memory.stats()["payments"].acked == 4, 30)

        async def counted() -> float:
            series = parse(render(await operations.families()).decode())
            return series.get(("oncebox_lag_seconds_count", LABELS), 0)

        while await counted() < 2:
            pass
        series = parse(render(await operations.families()).decode())
        points = reader.get_metrics_data()
    provider.shutdown()

    def up_to(bound: str) -> float:
        return series["oncebox_lag_seconds_bucket", tuple(sorted([*LABELS, ("le", bound)]))]

    # One 1,000 s old, and one from a clock that is ahead, which is no younger than new.
    assert [up_to(bound) for bound in ("0.005", "900", "3600", "+Inf")] == [1, 1, 2, 2]
    assert 1000 <= series["oncebox_lag_seconds_sum", LABELS] < 1500
    assert points is not None
    ((scope,),) = [resource.scope_metrics for resource in points.resource_metrics]
    [lag] = [metric for metric in scope.metrics if metric.name == "oncebox.lag"]
    [point] = lag.data.data_points
    assert (lag.unit, point.count, dict(point.attributes)) == ("s", 2, dict(LABELS))  # type: ignore[union-attr, arg-type]


def test_processes_add_theirs_up(tmp_path: Path) -> None:
    meters = [Meter(lambda consumer: ["payment"]) for _ in range(2)]
    for number, meter in enumerate(meters):
        meter.lag("billing", "payment", 1.0)
        meter.lag("billing", "stranger", float(number))
        Shared(meter.snapshot, tmp_path / f"{number}.json").write()
    together = Shared(meters[0].snapshot, tmp_path / "0.json").together()
    assert [(kind, sum(found.counts), found.seconds) for _, kind, found in together.lags] == [
        ("other", 3, 1.0),
        ("payment", 3, 3.0),
    ]
