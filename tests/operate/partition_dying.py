"""Walks through a ledger in partitions that are killed: a child ends by SIGKILL at a step of its choosing, again and
again.

`python -m tests.operate.partition_dying DATABASE` puts a past day into a partition, some of it to stay, has a child
walk and die before its n-th step, and looks at every row. It prints what it found as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import oncebox.drivers.psycopg  # noqa: F401 - once, here, and not by every child
from oncebox.core import partitions
from oncebox.core.run import Perform
from oncebox.core.steps import Step
from oncebox.drivers.session import Session
from oncebox.runtime.sweeper import Sweeper
from tests.operate.alone import wait_until_alone
from tests.operate.partitioned import Ledger, days_ago

ROUNDS_MAX = 90


class Dying(Sweeper):
    """Dies before its `number`th step."""

    number = 0
    seen = 0

    def performer(self, session: Session) -> Perform:
        perform = super().performer(session)

        def counted(step: Step) -> object:
            self.seen += 1
            if self.seen == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return perform(step)

        return counted


def walk(ledger: Ledger, number: int) -> int:
    """In a child: 0 when it was killed, else how many steps there were."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sweeper = Dying(ledger.app.database, [ledger.billing], "me")
            sweeper.number, sweeper.pause = number, 0.0
            asyncio.run(sweeper.cycle(rest_seconds=0.0))
            os.write(writer, str(sweeper.seen).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    told = os.read(reader, 100)
    os.close(reader)
    # A partition that a killed one's session has in use is not dropped, and the next walk has other steps.
    wait_until_alone(ledger.own)
    return int(told or b"0")


def main(url: str) -> None:
    ledger = Ledger(url)
    ledger.split()
    held: set[str] = set()
    old: set[str] = set()
    for number in range(1, ROUNDS_MAX):
        split = ledger.tree().splits[0]
        if days_ago(20) not in split.days:
            ledger.ask(partitions.make_day(ledger.queries, split, days_ago(20)))
        # One of the days to come is missing, so that a walk has one to make.
        leaf = ledger.leaf(-5)
        ledger.rows(f"DROP TABLE IF EXISTS oncebox.{leaf}")
        early = set(ledger.known(-5))
        [stays] = ledger.known(20)
        ledger.rows(f"UPDATE oncebox.ledger SET state = 1 WHERE message_id = '{stays}'")
        [kept] = ledger.known(20)
        ledger.rows(
            f"INSERT INTO oncebox.result (consumer, source, message_id, body) VALUES ('billing', '', '{kept}', '')"
        )
        held.add(stays)
        old |= {kept, *ledger.known(20, 2)}
        moments = walk(ledger, number)
        there, results = ledger.ids(), ledger.ids("result")
        gone = old - there
        wrong = (
            f"lost {sorted(held - there)}" if held - there
            else f"lost what came early: {sorted(early - there)}" if early - there
            else f"half forgotten: {sorted(results - there)}" if results - there
            else "gone, and nobody says so" if gone and not ledger.rows("SELECT 1 FROM oncebox.forgotten")
            else "twice" if ledger.rows("SELECT 1 FROM oncebox.ledger GROUP BY message_id HAVING count(*) > 1")
            else f"left {sorted(old & there)}" if moments and old & there
            else ""
        )  # fmt: skip
        old &= there
        if wrong or moments:
            print(json.dumps({"wrong": wrong, "kills": number - 1, "moments": moments}))
            return
    print(json.dumps({"wrong": "it never came through", "kills": ROUNDS_MAX, "moments": 0}))


if __name__ == "__main__":
    main(*sys.argv[1:])
