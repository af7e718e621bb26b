"""`oncebox.toml`: policy per consumer and the schema's name, with the place of every word.

::

    schema = "oncebox"

    [consumers.billing]
    mode = "stored"
    batch = 100
    retry = { attempts = 5, base_seconds = 1.0 }
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from oncebox.errors import ConfigError
from oncebox.policy import Backoff, Policy, policy_words

CONFIG_VARIABLE = "ONCEBOX_CONFIG"
DEFAULT_FILE = "oncebox.toml"
_SETTINGS = {"schema", "consumers"}


class Config:
    """What a TOML file says; empty where there is none."""

    def __init__(self, path: Path | None, text: str, data: dict[str, Any]) -> None:
        self.path = path
        self._text = text
        unknown = sorted(data.keys() - _SETTINGS)
        if unknown:
            raise ConfigError(
                f"{self.where(None, unknown[0])}: unknown key {unknown[0]!r}; known: consumers, schema"
            )
        self.schema = self._checked("schema", data.get("schema", "oncebox"), str)
        self._consumers: dict[str, dict[str, Any]] = {}
        for name, words in self._checked("consumers", data.get("consumers", {}), dict).items():
            if not isinstance(words, dict):
                raise ConfigError(f"{self.where(None, name)}: [consumers.{name}] is a table of policy words")
            self._consumers[name] = self._policy(name, words)

    def _checked(self, key: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            raise ConfigError(f"{self.where(None, key)}: {key} is a {'table' if kind is dict else 'text'}")
        return value

    def _policy(self, name: str, words: dict[str, Any]) -> dict[str, Any]:
        for word, value in words.items():
            place = self.where(name, word)
            known = policy_words({word: value}, place)
            if "terminal" in known:
                raise ConfigError(
                    f"{place}: terminal is a tuple of exception types; it can only be set in code"
                )
            if "retry" in known and not isinstance(value, dict):
                raise ConfigError(f"{place}: retry is a table, as in retry = {{ attempts = 5 }}")
        found = policy_words(words, f"{self.path}")
        place = self.where(name, "retry")
        try:
            if "retry" in found:
                found["retry"] = Backoff(**found["retry"])
            for word in words:
                # Each alone, so that the error has the word's own place.
                place = self.where(name, word)
                said = policy_words({word: found.get(word, words[word])}, place)
                Policy(**said)
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{place}: {error}") from None
        return found

    def words(self, consumer: str) -> dict[str, Any]:
        """The policy words set for a consumer."""
        return dict(self._consumers.get(consumer, {}))

    def consumers(self) -> set[str]:
        """Every consumer the file names."""
        return set(self._consumers)

    def where(self, consumer: str | None, word: str | None = None) -> str:
        """`file:line` of a table or a word in it, for people."""
        inside = consumer is None
        for number, line in enumerate(self._text.splitlines(), 1):
            if table := re.match(r"\s*\[([^\]]+)\]", line):
                inside = consumer is not None and table[1].replace('"', "").strip() == f"consumers.{consumer}"
                if inside and word is None:
                    return f"{self.path}:{number}"
                if consumer is None and word is not None and table[1].startswith(word):
                    return f"{self.path}:{number}"
            elif inside and word is not None and re.match(rf'\s*"?{re.escape(word)}"?\s*[=.]', line):
                return f"{self.path}:{number}"
        return str(self.path)


def load(path: str | Path | None = None) -> Config:
    """The file named, or by ONCEBOX_CONFIG, or `oncebox.toml` here; ConfigError names file, line and key."""
    named = path or os.environ.get(CONFIG_VARIABLE)
    file = Path(named or DEFAULT_FILE)
    if not file.exists():
        if named:
            raise ConfigError(f"no configuration file {str(file)!r}")
        return Config(None, "", {})
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{file} can't be read: {reason}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(file, text, str(error)) from None
    return Config(file, text, data)


def _not_toml(file: Path, text: str, reason: str) -> ConfigError:
    """Where the parser stopped: its "(at line 3, column 9)" as file, line and key."""
    place = re.search(r" \(at line (\d+), column (\d+)\)", reason)
    if place is None:
        return ConfigError(f"{file} is not TOML: {reason}")
    number, column = int(place[1]), place[2]
    key = re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", [*text.splitlines(), ""][number - 1])
    at = f", at key {key[1]!r}" if key else ""
    return ConfigError(f"{file}:{number}: not TOML{at}: {reason[: place.start()]} (column {column})")
