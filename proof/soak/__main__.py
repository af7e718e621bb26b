"""`make soak`: ten minutes of kills by default, then every broker, then ten million rows that are purged under load.

`python -m proof.soak 60` kills for an hour; `--brokers '' --retention 0` leaves the rest out.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from proof import retention
from proof.soak.acts import ACTS, Played, play
from proof.soak.places import OneServer
from proof.soak.run import drive
from proof.soak.site import Site
from tests import conftest as _memory  # noqa: F401 - keeps temporary files in memory
from tests.crash.nursery import Nursery

REPORT = Path("reports/soak.json")
SHARE = 0.7
"""Of the time, for the first and longest part."""
BROKERS = {
    "kafka": "tests/brokers/test_kafka_chaos.py",
    "memory": "tests/brokers/test_memory_app.py",
    "nats": "tests/brokers/test_nats_app.py",
    "rabbitmq": "tests/brokers/test_rabbitmq.py",
    "redis": "tests/brokers/test_redis_app.py",
    "sqs": "tests/brokers/test_sqs_app.py",
}


class Report(msgspec.Struct, kw_only=True):
    """What `reports/soak.json` holds. `lost` and `doubled` are of everything, acts included."""

    seed: int
    messages: int
    deliveries: int
    kills: int
    database_kills: int
    crowds: int
    """How often strangers took every connection that the server has."""
    stops: int
    lost: int
    doubled: int
    acts: list[Played] = []
    brokers: dict[str, str] = {}
    """Brokers that were killed, too, and what came of it."""
    retention: str = ""
    order: str = ""
    seconds: float = 0.0
    violations: list[str] = []


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=10.0)
    parser.add_argument("--messages", type=int, help="default: 10,000 a minute")
    parser.add_argument("--kills", type=int, help="default: 20 a minute")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--acts", default=",".join(ACTS), help="after the first part; '' leaves them out")
    parser.add_argument(
        "--brokers", default="all", help=f"to be killed in the end: {', '.join(BROKERS)}; all; ''"
    )
    parser.add_argument("--retention", type=int, default=10_000_000, help="so many rows; 0 leaves it out")
    parser.add_argument("--order", type=int, default=0, help="so many ordered messages in the very end")
    told = parser.parse_args()
    began = time.monotonic()
    print(f"soak: {told.minutes:g} minutes, seed {told.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, Nursery(Path(name)) as nursery:
        report = first_part(nursery, Path(name), told)
        for act in filter(None, told.acts.split(",")):
            played = play(act, nursery, told.seed, 20.0, 3_000, 8)
            print(f"{time.monotonic() - began:5.0f} s: {msgspec.to_builtins(played)}", flush=True)
            report.acts.append(played)
            report.lost += played.lost
            report.doubled += played.doubled
            report.violations += played.violations
    for broker in list(BROKERS) if told.brokers == "all" else filter(None, told.brokers.split(",")):
        with_broker(report, broker, told.seed)
    if told.retention:
        with_retention(report, told.retention)
    if told.order:
        in_order(report, told.order, told.seed)
    report.seconds = round(time.monotonic() - began, 1)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print(table(report))
    return int(bool(report.violations or report.lost or report.doubled))


def first_part(nursery: Nursery, folder: Path, told: argparse.Namespace) -> Report:
    """One server, and everything that can happen to it and to workers."""
    site = Site(folder, nursery, random.Random(told.seed), OneServer())
    messages = told.messages or int(10_000 * told.minutes)
    kills = told.kills or int(20 * told.minutes)
    try:
        found = drive(site, told.minutes * 60 * SHARE, messages, kills)
        found += site.violations()
        counts = site.counts
        return Report(
            seed=told.seed, messages=len(site.sent), deliveries=site.deliveries, kills=counts["kills"],
            database_kills=counts["database"], crowds=counts["crowd"], stops=counts["stops"], lost=counts["lost"],
            doubled=counts["doubled"], violations=found[:100],
        )  # fmt: skip
    finally:
        site.close()


def with_broker(report: Report, broker: str, seed: int) -> None:
    """A broker's own chaos, in full: it is killed with the database and the consumers."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "chaos"]
    environment = {**os.environ, "ONCEBOX_SOAK": "1", "ONCEBOX_SEED": str(seed)}
    done = _run([*command, BROKERS[broker]], environment)
    # 5: no such test, or the server is not there.
    report.brokers[broker] = done.stdout.strip().rpartition("\n")[2]
    if done.returncode != 0:
        report.violations.append(f"{broker}: {done.stdout[-3000:]}")


def with_retention(report: Report, rows: int) -> None:
    """`proof.retention` with so many rows; its own figures are in `reports/retention.json`."""
    done = _run([sys.executable, "-m", "proof.retention", str(rows)], dict(os.environ))
    if done.returncode != 0:
        report.violations.append(f"retention: {(done.stdout + done.stderr)[-3000:]}")
        return
    found = msgspec.json.decode(retention.REPORT.read_bytes(), type=retention.Report)
    parts = (("row by row", found.walk), ("by partitions", found.partitions))
    report.retention = "; ".join(
        f"{how} {part.purge_rows_per_second:,.0f} of {part.rows:,} rows a second, messages kept {part.kept:.1%}"
        for how, part in parts
        if part is not None
    )


def in_order(report: Report, messages: int, seed: int) -> None:
    """`proof.order` with so many messages."""
    words = ["--messages", str(messages), "--seed", str(seed)]
    done = _run([sys.executable, "-m", "proof.order", *words], dict(os.environ))
    report.order = " ".join(done.stdout.split())
    if done.returncode != 0:
        report.violations.append(f"order: {(done.stdout + done.stderr)[-3000:]}")


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    print(done.stdout.strip().rpartition("\n")[2], flush=True)
    return done


def table(report: Report) -> str:
    """For people."""
    whole = (
        f"soak: {report.messages:,} messages, {report.deliveries:,} deliveries, {report.kills} kills "
        f"({report.database_kills} of the database), {report.crowds} times no connection left, {report.stops} stops, "
        f"{report.seconds:.0f} s, seed {report.seed}: {report.lost} lost, {report.doubled} doubled"
    )
    lines = [
        whole,
        *(
            f"  {act.name}: {act.messages:,} messages, {act.kills} kills: {act.lost} lost, {act.doubled} doubled"
            + (f", {act.window} in the window that is documented" if act.window else "")
            for act in report.acts
        ),
        *(f"  {broker}: {what}" for broker, what in report.brokers.items()),
        *([f"  retention: {report.retention}"] if report.retention else []),
        *([f"  order: {report.order}"] if report.order else []),
        *(f"  {text}" for text in report.violations[:20]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
