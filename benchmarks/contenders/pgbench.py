"""pgbench: what a client in C makes of the same SQL, as the limit."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.base import Contender
from benchmarks.load import ACCOUNTS, Load
from benchmarks.stage import Place, pgbench_binary
from oncebox import Message
from oncebox.core.batch import LOCK_MS
from oncebox.core.steps import Begin, Call, Commit
from oncebox.engines import postgresql
from oncebox.engines.queries import load as load_queries

DRAW = f"\\set account random(1, {ACCOUNTS})\n\\set n :n + 1\n"
EFFECT = "UPDATE account SET balance = balance + 1 WHERE id = :account;\n"
EFFECT_PREPARED = "PREPARE effect AS UPDATE account SET balance = balance + 1 WHERE id = $1"
INSERT = (
    "INSERT INTO handmade (consumer, message_id, status) "
    "VALUES ('pgbench', :tag::text || '-' || :client_id::text || '-' || :n::text, 'completed') "
    "ON CONFLICT DO NOTHING;\n"
)
LINKS = {"same_sql_chained": 20, "same_sql_batch": 100}
"""Messages that one run of a script handles, where it is not one."""
PLAIN = {
    "unprotected": DRAW + "BEGIN;\n" + EFFECT + "COMMIT;\n",
    "autocommit": DRAW + EFFECT,
    "insert_complete": DRAW + "BEGIN;\n" + INSERT + EFFECT + "COMMIT;\n",
    "insert_complete_pipelined": (
        DRAW + "\\startpipeline\nBEGIN;\n" + INSERT + EFFECT + "COMMIT;\n\\endpipeline\n"
    ),
}


def same_sql(links: int) -> str:
    """oncebox's own statements, prepared where it prepares them: three messages to the server each; or two, where the
    next claim travels with the commit, as in oncebox while there is a next message. pgbench wants its script to end
    outside of a transaction, so the last of `links` goes without."""
    queries = load_queries("postgresql", "oncebox")
    check = postgresql.check(queries)

    def opening(number: str) -> Begin:
        claim: dict[str, Any] = {
            "consumer": "pgbench",
            "source": "payments",
            "message_id": f":tag-:client_id-{number}",
            "type": "payment.captured",
            "fingerprint": bytes(32),
            "state": 0,
            "lazy": False,
            "token": f":tag.:client_id.{number}",
        }
        call = Call(queries.claim, {name: claim[name] for name in queries.claim.names})
        return Begin(claim["token"], (call,), carried=True)

    claims = postgresql.Claims(queries)
    now = opening(":n")
    first = _one_message(f"{postgresql.learn(now, claims)}{EFFECT_PREPARED}")
    parts = [f"\\if :first\n{first}\n\\set first 0\n\\endif"]
    for link in range(links):
        parts.append(f"{DRAW}\\set next :n + 1")
        if link == 0:
            parts.append(_one_message(postgresql.begin(now, claims, "BEGIN")))
        then = opening(":next") if link < links - 1 else None
        parts.append("EXECUTE effect(:account);")
        parts.append(_one_message(postgresql.commit(Commit(now.token, (), then), claims, check)))
    return "\n".join(parts) + "\n"


def same_sql_batch(size: int) -> str:
    """A batch as oncebox runs it with ordinary handlers: claimed at once, each effect awaited."""
    queries = load_queries("postgresql", "oncebox")
    token = ":tag.:client_id.:batch"
    claims = [
        {
            "source": "payments",
            "message_id": f":tag-:client_id-:batch-{number}",
            "type": "payment.captured",
            "fingerprint": bytes(32),
        }
        for number in range(size)
    ]
    claim = Call(queries.claim_many, {"consumer": "pgbench", "rows": claims})
    parts = [
        f"\\if :first\n{_one_message(EFFECT_PREPARED)}\n\\set first 0\n\\endif\n{DRAW}\\set batch :n",
        _one_message(postgresql.begin(Begin(token, lock_ms=LOCK_MS))),
        _one_message(postgresql.text(claim)),
        "SAVEPOINT oncebox;",
        *[f"{DRAW}EXECUTE effect(:account);"] * size,
        _one_message(postgresql.commit(Commit(token, ()), check=postgresql.check(queries))),
    ]
    return "\n".join(parts) + "\n"


def _one_message(statements: str) -> str:
    r"""pgbench sends what `\;` joins in one message."""
    return " ".join(statements.split()).replace("; ", " \\; ") + ";"


class Counted(Load):
    """pgbench makes its own messages; only their number is ours."""

    def make(self, count: int) -> list[Any]:
        self.effects += count
        return [None] * count


class Pgbench(Contender):
    """A script, run for so many transactions; its own figure, without connecting."""

    in_process = False
    stays_connected = False

    def __init__(self, script: str, concurrency: int = 1) -> None:
        super().__init__("pgbench", concurrency, Counted())
        self.label = f"pgbench {script}"
        self._simple = script not in PLAIN
        self._links = LINKS.get(script, 1)
        made = same_sql_batch if script == "same_sql_batch" else same_sql
        self._text = made(self._links) if self._simple else PLAIN[script]
        self.count_min = max(50, 4 * self._links) * concurrency

    async def open(self, stage: Place) -> None:
        self._url = stage.url
        self._folder = tempfile.TemporaryDirectory(prefix="oncebox-bench-")
        self._file = Path(self._folder.name, "script.sql")
        self._file.write_text(self._text)

    async def run(self, messages: Sequence[Message]) -> float:
        runs = max(1, len(messages) // self.concurrency // self._links)
        done = runs * self._links * self.concurrency
        self.load.effects -= len(messages) - done
        binary = pgbench_binary()
        assert binary is not None
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-n", "-M", "simple" if self._simple else "prepared"),
            *("-c", str(self.concurrency), "-j", str(min(2, self.concurrency)), "-t", str(runs)),
            *("-D", "n=0", "-D", "first=1", "-D", f"tag=t{os.urandom(4).hex()}"),
            *("-f", str(self._file), self._url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        found = re.search(r"tps = ([\d.]+)", out.decode())
        if process.returncode != 0 or found is None:
            raise RuntimeError(f"pgbench failed: {err.decode()[-500:]}")
        return len(messages) / (float(found[1]) * self._links)

    async def close(self) -> None:
        self._folder.cleanup()
