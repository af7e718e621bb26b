"""Words of policy: what each may be, said where it was written."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oncebox import App, Backoff
from oncebox.errors import ConfigError
from oncebox.policy import Policy

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("mode", "INLINE", "one of 'inline', 'stored'"),
        ("batch", "100", "a whole number"),
        ("batch", 2.5, "a whole number"),
        ("batch", True, "a whole number"),
        ("batch", 0, "at least 1"),
        ("batch", 10_001, "at most 10,000"),
        ("concurrency", -1, "at least 0"),
        ("claim_check_bytes", -1, "at least 0"),
        ("timeout_seconds", "30s", "a number of seconds, or a timedelta"),
        ("timeout_seconds", 0, "more than 0"),
        ("lease_seconds", NAN, "a number of seconds"),
        ("lock_timeout_seconds", INF, "a number of seconds"),
        ("unknown_type_seconds", -1, "more than 0"),
        ("retention_seconds", -1, "more than 0"),
        ("retry", 5, "a Backoff, as in"),
        ("terminal", ("ValueError",), "a tuple of exception types"),
        ("terminal", (int,), "a tuple of exception types"),
    ],
)
def test_wrong_value_is_refused_naming_the_word_and_what_it_may_be(word: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{word}=.*{said}"):
        Policy(**{word: value})


def test_wrong_value_names_its_consumer(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match=r"^consumer 'billing': batch='100': it is a whole number"):
        App(sqlite_url).consumer("billing", batch="100")


@pytest.mark.parametrize("given", [ValueError, [ValueError], (ValueError,), {ValueError}])
def test_terminal_may_be_one_type_or_any_collection_of_them(given: Any) -> None:
    assert Policy(terminal=given).terminal == (ValueError,)


def test_short_names_and_timedeltas_are_taken(sqlite_url: str) -> None:
    words: dict[str, Any] = {"timeout": timedelta(minutes=1), "lease": 5, "lock_timeout": 2.5}
    policy = App(sqlite_url).consumer("billing", **words).policy
    assert (policy.timeout_seconds, policy.lease_seconds, policy.lock_timeout_seconds) == (60.0, 5, 2.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"attempts": "3"}, "attempts='3': it is a whole number"),
        ({"attempts": 0}, "at least 1 attempt"),
        ({"base_seconds": NAN}, "base_seconds=nan: it is a number"),
        ({"factor": 0.5}, "factor is at least 1"),
    ],
)
def test_backoff_refuses_what_it_cannot_count_with(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Backoff(**words)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('batch = "100"', "a whole number"),
        ('timeout = "30s"', "a number of seconds"),
        ('mode = "later"', "one of 'inline', 'stored'"),
        ("retry = { attempts = 0 }", "at least 1 attempt"),
        ("retry = { tries = 3 }", "tries"),
        ("retry = 3", "retry is a table"),
        ("retries = 3", "unknown policy word 'retries'"),
        ('terminal = ["ValueError"]', "can only be set in code"),
    ],
)
def test_wrong_value_in_the_file_names_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "oncebox.toml"
    file.write_text(f"[consumers.billing]\ncrash_limit = 3\n{line}\n")
    with pytest.raises(ConfigError, match=f"oncebox.toml:3: .*{said}"):
        App("sqlite:///x.db", config=file)
