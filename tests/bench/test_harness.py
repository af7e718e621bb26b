"""The benchmark runs and writes its report. What it finds is not tested: a busy machine is not a bug."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.load import ACCOUNTS, Load, decode
from benchmarks.options import parse
from benchmarks.pairs import spread
from benchmarks.plan import checks, figures, names
from tests.servers import Postgres

ROOT = Path(__file__).parents[2]
SMALL = (
    "--only",
    "inline_c1,sqlite_batch,broker_kafka_batch",
    "--rounds",
    "2",
    "--slice",
    "0.03",
    "--no-plot",
)
FIGURES = {
    "inline_c1", "inline_c16", "group_c1", "group_c4", "guard_c1", "duplicates", "batch_handlers", "batch_zipf_c4",
    "batch_set", "stored", "stored_set", "vs_pending", "vs_pending_batch", "vs_pgqueuer", "vs_procrastinate", "vs_dbos",
    "ordered_stored", "take_growth", "sqlite_batch", "memory_mb", "import_ms", "relay_latency_ms",
    "relay_vs_loop", "broker_rabbitmq_batch", "broker_rabbitmq_single", "broker_kafka_batch", "broker_kafka_single",
    "broker_nats_batch", "broker_nats_single", "broker_redis_batch", "broker_redis_single",
}  # fmt: skip


def test_a_small_run_writes_its_figures(postgres: Postgres, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--out", str(tmp_path), *SMALL],
        cwd=ROOT,
        env={**os.environ, "DATABASE": postgres.url(), "QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert [figure["figure"] for figure in report["figures"]] == [
        "inline_c1",
        "sqlite_batch",
        "broker_kafka_batch",
    ]
    for figure in report["figures"]:
        assert figure["ok"] is (figure["value"] >= figure["bar"])
        assert figure["verified"], figure["effects"]
        assert figure["spread"]["pairs"] == 2
        assert figure["contender"]["per_second"] > 0
    assert report["figures"][0]["driver"] == "psycopg"
    assert postgres.url().rsplit("@", 1)[1] not in json.dumps(report)


def test_every_figure_of_the_table_is_there_with_a_bar() -> None:
    assert set(names()) >= FIGURES
    assert all(row.bar is not None for row in (*figures(), *checks()))
    assert len(set(names())) == len(names())


def test_messages_are_as_large_as_asked_and_fail_as_often() -> None:
    load = Load(payload_bytes=300, failing_every=100)
    messages = load.make(1_000)
    assert all(abs(len(message.payload) - 300) < 20 for message in messages)
    payments = [decode(message.payload) for message in messages]
    assert sum(payment.amount == 0 for payment in payments) == 10
    assert load.effects == 990
    assert all(1 <= payment.account <= ACCOUNTS for payment in payments)


def test_duplicates_are_of_messages_that_were_sent() -> None:
    load = Load(duplicates=0.5)
    first = {message.id for message in load.fresh(100)}
    second = load.make(100)
    assert sum(message.id in first for message in second) == 50
    assert load.effects == 150


def test_the_spread_is_the_quartiles() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == {"q1": 2.0, "q3": 4.0, "pairs": 5}
    assert spread([2.0]) == {"q1": 2.0, "q3": 2.0, "pairs": 1}


def test_only_names_what_is_wanted() -> None:
    options = parse(["--only", "inline_c1,stored"])
    assert options.wants("stored")
    assert not options.wants("inline_c16")
