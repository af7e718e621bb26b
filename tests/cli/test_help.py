"""Help that teaches, text that is safe to print, and a reference that leaves nothing out."""

import re
from pathlib import Path

import pytest

from oncebox import __version__
from oncebox.cli.text import age, clean, one_line, redact
from tests.cli.kit import oncebox

ROOT = Path(__file__).parents[2]
COMMANDS = ["run", "status", "show", "migrate", "schema print"]


def test_version(tmp_path: Path) -> None:
    assert oncebox("--version", cwd=tmp_path) == (0, f"oncebox {__version__}\n", "")


def test_help_groups_the_commands_and_says_where_to_begin(tmp_path: Path) -> None:
    done = oncebox("--help", cwd=tmp_path)
    assert done.code == 0
    for text in ("The first minute", "Try it", "Run", "Look", "Tables", "Exit codes: 0 done, 1 failed, 2"):
        assert text in done.out
    assert oncebox(cwd=tmp_path).out.strip() == done.out.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples_and_the_reference_has_all_of_it(command: str, tmp_path: Path) -> None:
    done = oncebox(*command.split(), "--help", cwd=tmp_path)
    assert done.code == 0
    assert f"  oncebox {command}" in done.out.partition("Examples")[2]
    reference = (ROOT / "docs/reference/cli.md").read_text()
    section = re.split(r"^## ", reference, flags=re.MULTILINE)
    (described,) = [text for text in section if text.startswith(f"`oncebox {command}`")]
    options = set(re.findall(r"│ (?:\* +)?(--[a-z-]+)", done.out)) - {"--help"}
    assert options
    shared = next(text for text in section if text.startswith("Options that several commands share"))
    missing = {option for option in options if f"`{option}" not in described + shared}
    assert not missing


def test_the_demo_has_its_own_help(tmp_path: Path) -> None:
    done = oncebox("demo", "--help", cwd=tmp_path)
    assert (done.code, "Usage: oncebox demo" in done.out) == (0, True)
    for option in ("--messages", "--duplicates", "--kills", "--seed", "--database", "--json"):
        assert option in done.out


def test_a_word_that_is_no_command_or_option(tmp_path: Path) -> None:
    for words in (["stat"], ["status", "--wach"], ["run", "x:y", "--workers", "0"]):
        done = oncebox(*words, cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:secret@h/d?x=1", "postgresql://u:***@h/d?x=1"),
        ("amqp://u:se:cr@et@h, then", "amqp://u:***@h, then"),
        ("host=h password=secret dbname=d", "host=h password=*** dbname=d"),
        ("host=h password='se cret' dbname=d", "host=h password=*** dbname=d"),
        ("postgresql://h/d?user=u&password=secret&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_passwords_are_taken_out(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_control_characters_are_taken_out() -> None:
    assert clean("a\x1b[31mb\x9b\u202ec\ud800") == "a[31mbc"
    assert clean("a\nb\tc\rd", lines=True) == "a\nb\tcd"
    assert one_line("a\n  b\x00 c") == "a b c"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.44, "0.4 s"),
        (-1, "0.0 s"),
        (59.6, "60 s"),
        (600, "10 min"),
        (9000, "2 h"),
        (1e6, "12 d"),
    ],
)
def test_spans_for_people(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown
