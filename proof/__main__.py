"""`make proof`. `SEED=…` repeats what was left to chance; `--schedule` repeats one interleaving."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from proof import jobs, report
from proof.bays import bay
from proof.crashes import FLOWS
from proof.schedules.explore import replay
from proof.schedules.flows import BY_NAME
from proof.schedules.world import World

PROCESSES = 4
"""On two cores: each waits for its server, or for a child, half of the time."""
SECONDS = 660.0
"""After so long, what can be left out is: it takes a quarter of an hour at most, on two cores of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument(
        "--seed", default=os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))
    )
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--only", help="pieces to do: crash, server, interleave, model, walk, catch")
    parser.add_argument("--schedule", help="as a violation names it: engine, flow+flow | moves")
    told = parser.parse_args()
    if told.schedule:
        return again(told.schedule)
    wanted = jobs.sample(told.seed) if told.quick else jobs.whole(told.seed)
    if told.only:
        wanted = [job for job in wanted if job[0] in told.only.split(",")]
    print(f"proof: {len(wanted)} pieces, SEED={told.seed}", flush=True)
    made = prove(wanted, told.seed, whole=not told.quick and not told.only)
    report.write(made)
    print(report.table(made))
    return int(bool(made.violations))


def prove(wanted: list[jobs.Job], seed: str, *, whole: bool) -> report.Report:
    """Do the pieces, some at a time, and put together what they found."""
    began = time.monotonic()
    found: dict[str, list[Any]] = defaultdict(list)
    broken: list[str] = []
    took: dict[str, float] = defaultdict(float)
    left_out = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        pending = [(job, pool.submit(jobs.perform, job)) for job in wanted]
        told = began
        for done, (job, future) in enumerate(pending, 1):
            if jobs.can_be_left_out(job) and time.monotonic() - began > SECONDS and future.cancel():
                left_out += 1
                continue
            try:
                piece, seconds = future.result()
                found[job[0]].append(piece)
                took[job[0]] += seconds
            except Exception as error:
                broken.append(f"{job}: {type(error).__name__}: {error}")
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise
            if time.monotonic() - told > 20:
                told = time.monotonic()
                print(f"{told - began:5.0f} s: {done} of {len(pending)}, at {job[0]}", flush=True)
    made = report.Report(seed=seed, flows=[*FLOWS, "migrate"], violations=broken)
    report.add_crashes(made, found["crash"] + found["server"], whole=whole)
    report.add_schedules(made, [each for those in found["interleave"] for each in those], whole=whole)
    report.add_model(made, dict(found["model"]))
    report.add_planted(made, dict(found["catch"]))
    for walked in found["walk"]:
        made.properties[walked.engine] = walked.steps
        made.violations += walked.violations
    made.seconds_by_part = {part: round(seconds, 1) for part, seconds in took.items()}
    made.left_out = left_out
    made.seconds = round(time.monotonic() - began, 1)
    return made


def again(text: str) -> int:
    """One interleaving, told step by step."""
    name, _, rest = text.removeprefix("schedule ").partition(", ")
    flows, moves = [part.strip() for part in rest.removeprefix("schedule ").split("|")[:2]]
    world = World(bay().url(name))
    trace, words = replay(world, [BY_NAME[flow] for flow in flows.split("+")], moves)
    world.close()
    print(" ".join(trace), *(words or ["no violation"]), sep="\n")
    return int(bool(words))


if __name__ == "__main__":
    sys.exit(main())
