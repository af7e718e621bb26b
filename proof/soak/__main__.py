"""`make soak`: ten minutes by default. `python -m proof.soak 60` runs an hour."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from proof.soak.site import Site
from tests import conftest as _memory  # noqa: F401 - keeps temporary files in memory
from tests.crash.nursery import Nursery

REPORT = Path("reports/soak.json")
STUCK_SECONDS = 120.0
"""Nothing has moved for so long though nothing bad happens any more: something is stuck."""
BACKLOG_MAX = 20_000


class Report(msgspec.Struct, kw_only=True):
    """What `reports/soak.json` holds."""

    seed: int
    messages: int
    deliveries: int
    kills: int
    database_kills: int
    stops: int
    lost: int
    doubled: int
    seconds: float
    violations: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=10.0)
    parser.add_argument("--messages", type=int, help="default: 10,000 a minute")
    parser.add_argument("--kills", type=int, help="default: 20 a minute")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    told = parser.parse_args()
    messages = told.messages or int(10_000 * told.minutes)
    kills = told.kills or int(20 * told.minutes)
    with tempfile.TemporaryDirectory() as name, Nursery(Path(name)) as nursery:
        site = Site(Path(name), nursery, random.Random(told.seed))
        try:
            report = soak(site, told.minutes * 60, messages, kills, told.seed)
        finally:
            site.close()
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print(
        f"soak: {report.messages:,} messages, {report.deliveries:,} deliveries, {report.kills} kills "
        f"({report.database_kills} of the database), {report.stops} stops, {report.seconds:.0f} s, seed {report.seed}: "
        f"{report.lost} lost, {report.doubled} doubled"
    )
    for text in report.violations[:20]:
        print("  ", text)
    return int(bool(report.violations or report.lost or report.doubled))


def soak(site: Site, seconds: float, messages: int, kills: int, seed: int) -> Report:
    """Send, strike and tend until everything is sent and struck; then calm, and the checker's word."""
    began = time.monotonic()
    site.tend()
    told = 0.0
    sent = 0
    while True:
        passed = time.monotonic() - began
        share = min(1.0, passed / (seconds * 0.85))
        if (wanted := min(int(messages * share) - sent, BACKLOG_MAX - site.backlog)) > 0:
            site.send(wanted)
            sent += wanted
        if site.counts["kills"] < int(kills * share):
            site.strike()
        site.tend()
        if passed - told > 15:
            told = passed
            print(
                f"{passed:5.0f} s: {sent:,} sent, {dict(site.counts)}, (effects, queue, broker) {site.progress()}"
            )
        if sent >= messages and site.counts["kills"] >= kills:
            break
        time.sleep(0.02)
    site.calm()
    found = settle(site)
    site.end()
    found += site.violations()
    counts = site.counts
    return Report(
        seed=seed, messages=sent, deliveries=site.deliveries, kills=counts["kills"],
        database_kills=counts["database kills"], stops=counts["stops"], lost=counts["lost"],
        doubled=counts["doubled"], seconds=round(time.monotonic() - began, 1), violations=found[:100],
    )  # fmt: skip


def settle(site: Site) -> list[str]:
    """Wait until nothing is on its way; a sentence, and a dump of everything, if nothing moves any more."""
    last, since = site.progress(), time.monotonic()
    while last[1:] != (0, 0):
        time.sleep(0.2)
        site.tend()
        if (now := site.progress()) != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            dump = REPORT.with_name("soak-stuck.txt")
            dump.parent.mkdir(exist_ok=True)
            dump.write_text(site.state())
            return [f"stuck: {last} (effects, queue, broker) for {STUCK_SECONDS:g} s; see {dump}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
