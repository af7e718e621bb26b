"""examples/delivery: three services, killed at random, and every scan has one effect at each of them."""

import asyncio
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from examples.delivery.__main__ import main
from examples.delivery.chain import SERVICES, Chain, Options
from examples.delivery.parts import Scan, connect, set_up
from examples.delivery.standing import standing
from oncebox import Outbox
from tests.brokers.chaos import SOAKING

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900 if SOAKING else 240)
def test_the_command_runs_the_chain_under_kills_and_says_what_came_of_it() -> None:
    scans, kills = (2000, 60) if SOAKING else (25, 3)
    words = ["--scans", str(scans), "--kills", str(kills), "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.delivery", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = {
        cells[0].strip(): cells[1].strip()
        for line in done.stdout.splitlines()
        if len(cells := line.strip("│ ").split("│")) == 2
    }
    expected = {"scans": scans, "state changes": scans, "requests (one idempotency key each)": scans}
    for name, count in {**expected, "processes killed": kills, "lost": 0, "doubled": 0}.items():
        assert table[name] == f"{count:,}", done.stdout
    assert "Every scan led to one state change and one notification request." in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--database", "mysql://x"], "--database is postgresql://"),
        (["--broker", "kafka://x"], "--broker is amqp://"),
        (["--scans", "0"], "--scans is at least 1"),
    ],
)
def test_a_bad_word_is_said_before_anything_starts(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["delivery", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scans", "moves", "calls", "lost", "doubled"),
    [
        (["a", "b"], ["a", "b"], [("k1", "a"), ("k2", "b"), ("k1", "a")], 0, 0),
        (["a"], ["a", "b"], [("k1", "a"), ("k2", "b")], 1, 0),
        (["a", "b"], ["a"], [("k1", "a"), ("k2", "b")], 1, 0),
        (["a", "b"], ["a", "b"], [("k1", "a")], 1, 0),
        (["a", "b", "b"], ["a", "b"], [("k1", "a"), ("k2", "b")], 0, 1),
        (["a", "b"], ["a", "a", "b"], [("k1", "a"), ("k2", "b")], 0, 1),
        (["a", "b"], ["a", "b"], [("k1", "a"), ("k2", "b"), ("k3", "b")], 0, 1),
        (["a", "b"], ["a", "b"], [("k1", "a"), ("k1", "b")], 0, 1),
    ],
)
def test_the_judge_sees_what_is_lost_and_what_is_doubled(
    tmp_path: Path, scans: list[str], moves: list[str], calls: list[tuple[str, str]], lost: int, doubled: int
) -> None:
    chain = Chain(Options(scans=2), tmp_path)
    chain._scans = [Scan(id_, "p", 1, "new", "") for id_ in ("a", "b")]
    chain._urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("intake", "tracking", "notify")}
    for name, url in chain._urls.items():
        set_up(name, url)
    for service, statement, rows in (
        ("intake", "INSERT INTO scan VALUES (?, 'p', 1)", scans),
        ("tracking", "INSERT INTO move VALUES (?, 'p', 1)", moves),
    ):
        connection = connect(chain._urls[service])
        connection.executemany(statement, [(row,) for row in rows])
        connection.commit()
        connection.close()
    for key, scan in calls:
        chain.provider.take(key, {"scan": scan})
    chain._judge()
    chain.provider._server.server_close()
    assert (chain.figures.lost, chain.figures.doubled) == (lost, doubled)


def test_a_chain_that_stands_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.delivery.chain.STALL_SECONDS", 0.5)
    monkeypatch.setattr("examples.delivery.processes.SEATS", {})
    figures = asyncio.run(Chain(Options(scans=3, kills=0), tmp_path).run())
    assert (figures.lost, figures.doubled, figures.moved) == (3, 0, 0)


def test_what_stands_still_is_told(tmp_path: Path) -> None:
    chain = Chain(Options(scans=2), tmp_path)
    chain._urls = {name: f"sqlite:///{tmp_path / name}.db" for name in SERVICES}
    for name, url in chain._urls.items():
        set_up(name, url)
    with chain.provider, closing(connect(chain._urls["intake"])) as connection:
        Outbox("intake").publish(connection, "parcel.scanned", {})
        connection.execute("UPDATE oncebox_outbox SET state = 2, error = 'BrokerError: no queue'")
        connection.commit()
    told = standing(chain._rows, SERVICES).splitlines()
    assert any(line.startswith("intake: outbox: [('2', '0', 'BrokerError: no queue', '1'") for line in told)
    assert not [line for line in told if "Error'" in line], "every question is answered"
    (tmp_path / "notify.db").unlink()
    assert any(
        "notify: queue: [('OperationalError'" in line for line in standing(chain._rows, SERVICES).splitlines()
    )
