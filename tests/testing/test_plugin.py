"""The plugin: fixtures in a user's test run, and nothing before they are asked for."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
def test_time_passes_when_it_is_told_to(oncebox_broker, oncebox_clock):
    import asyncio
    from oncebox import Message

    async def deliveries():
        source = oncebox_broker.queue("q", visibility_seconds=30)
        await source.open()
        oncebox_broker.put("q", Message(id="a"))
        first = await source.receive(1)
        oncebox_clock.advance(31)
        return [*first, *await source.receive(1)]

    assert [delivery.deliveries for delivery in asyncio.run(deliveries())] == [1, 2]


def test_provider_records(oncebox_http):
    import httpx

    with httpx.Client(transport=oncebox_http) as client:
        assert client.post("https://provider.example/charges", json={"amount": 1}).json() == {}
    assert [str(call) for call in oncebox_http.calls] == ["POST https://provider.example/charges"]
    assert oncebox_http.calls[0].body == b'{"amount":1}'
"""


def _python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )


def test_fixtures_are_there(tmp_path: Path) -> None:
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert entry == {"oncebox": "oncebox.testing.plugin"}
    (tmp_path / "test_it.py").write_text(TESTS)
    # By name and without entry points, so that it is this tree's and loaded once.
    done = _python(
        "-c",
        "import os, sys, pytest; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1';"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'oncebox.testing.plugin']))",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_plugin_loads_nothing_that_is_not_asked_for(tmp_path: Path) -> None:
    done = _python(
        "-c",
        "import sys, oncebox.testing.plugin; print(sorted(n for n in sys.modules if n.startswith('oncebox')))",
        cwd=tmp_path,
    )
    assert done.stdout == "['oncebox', 'oncebox.testing', 'oncebox.testing.plugin']\n"


def test_kit_needs_no_pytest(tmp_path: Path) -> None:
    done = _python(
        "-c",
        "import sys; sys.modules['pytest'] = None; from oncebox.testing import prove_once, deliver, crash_at;"
        "import oncebox.testing; print(all(getattr(oncebox.testing, n) for n in oncebox.testing.__all__))",
        cwd=tmp_path,
    )
    assert done.stdout == "True\n"
