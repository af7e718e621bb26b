"""What the tables should look like, read from the statements that make them."""

from __future__ import annotations

import re
from typing import NamedTuple

from oncebox.engines.migrations import statements

_CHANGE = re.compile(
    r"(?P<what>CREATE (?:UNLOGGED )?TABLE|CREATE (?:UNIQUE )?INDEX|DROP INDEX|CREATE CONSTRAINT TRIGGER)"
    r'(?: IF (?:NOT )?EXISTS)? (?:"[a-z0-9_]+"\.)?(?P<name>\w+)'
    r'(?:[^;(]*?(?: ON (?:"[a-z0-9_]+"\.)?(?P<table>\w+)))?',
    re.DOTALL,
)


class Shape(NamedTuple):
    """Names of what there should be; indexes and triggers with their tables."""

    tables: frozenset[str]
    indexes: frozenset[tuple[str, str]]
    triggers: frozenset[tuple[str, str]]


def expected(dialect: str, schema: str) -> Shape:
    """What all migrations together leave behind."""
    tables: set[str] = set()
    indexes: dict[str, str] = {}
    triggers: set[tuple[str, str]] = set()
    for statement in statements(dialect, schema=schema):
        for change in _CHANGE.finditer(re.sub(r"--[^\n]*", "", statement)):
            what, name, table = change["what"], change["name"], change["table"] or ""
            if what == "DROP INDEX":
                indexes.pop(name, None)
            elif what.endswith("TABLE"):
                tables.add(name)
            elif what.endswith("INDEX"):
                indexes[name] = table
            else:
                triggers.add((table, name))
    return Shape(frozenset(tables), frozenset((t, n) for n, t in indexes.items()), frozenset(triggers))
