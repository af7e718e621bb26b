"""A peer in its own process and environment, spoken to by lines."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders.base import Contender, ContenderEnded
from benchmarks.load import Load
from benchmarks.stage import Place
from oncebox import Message

PYTHON = Path(".venv-peers/bin/python")
NAMES = ("pgqueuer", "procrastinate", "dbos")
VERSIONS = (
    "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
)
FOLDER = Path(__file__).parent.parent / "peers"
ANSWER_SECONDS_MAX = 60
LINE_BYTES_MAX = 64 * 1024 * 1024


def installed() -> bool:
    """Whether `make bench-peers` was run."""
    return PYTHON.exists()


def versions() -> dict[str, str]:
    """What is installed there."""
    if not installed():
        return {}
    done = subprocess.run([str(PYTHON), "-c", VERSIONS, *NAMES], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout or "{}")
    return found


class Peer(Contender):
    """One of the scripts in `benchmarks/peers`, with its settings as environment variables."""

    in_process = False
    count_max = 4000

    def __init__(self, name: str, settings: dict[str, str], load: Load | None = None) -> None:
        super().__init__(name, 1, load)
        self.label = name
        self.settings = settings

    async def open(self, stage: Place) -> None:
        self._process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            str(FOLDER / f"{self.label}_worker.py"),
            stage.url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **self.settings},
            limit=LINE_BYTES_MAX,
        )
        await self._answer()

    async def run(self, messages: Sequence[Message]) -> float:
        assert self._process.stdin is not None
        line = json.dumps([(message.id, message.payload.decode()) for message in messages])
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()
        return float((await self._answer())["seconds"])

    async def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_SECONDS_MAX)
        except TimeoutError:
            raise ContenderEnded(f"{self.label} did not answer within {ANSWER_SECONDS_MAX} s") from None
        if not line:
            raise ContenderEnded(f"{self.label} ended by itself; run its script by hand to see why")
        answer: dict[str, float] = json.loads(line)
        return answer

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
