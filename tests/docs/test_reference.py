"""What exists is documented: every policy word, error, outcome, reason, table, column and command.

Pages are compared with the code, row by row, so that neither can drift from the other.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer.main
from markdown_it import MarkdownIt
from markdown_it.token import Token

from oncebox import errors
from oncebox.app import App
from oncebox.core.outcomes import ANSWERS, Reason, Status
from oncebox.engines.migrations import DIALECTS, statements
from oncebox.policy import _ALIASES, Backoff, Policy

DOCS = Path(__file__).parents[2] / "docs"
_CODE = re.compile(r"`([^`]+)`")
_TABLE = re.compile(
    r'CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(?:"oncebox"\.|oncebox_)(\w+) ?'
    r"\((.*?)\n?\)(?: WITH| WITHOUT|;|$)",
    re.DOTALL,
)


def _sections(page: str) -> Iterator[tuple[str, Token, list[Token]]]:
    """Every table of a page: the heading it stands under, and its rows' cells."""
    heading = ""
    tokens = MarkdownIt("commonmark").enable("table").parse((DOCS / page).read_text())
    cells: list[Token] = []
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[at + 1].content
        elif token.type == "tr_open":
            cells = []
        elif token.type == "inline" and tokens[at - 1].type == "td_open":
            cells.append(token)
        elif token.type == "tr_close" and cells:
            yield heading, cells[0], cells


def _rows(page: str, *headings: str) -> dict[str, list[str]]:
    """First cell's code words to the row's other cells, of tables under these headings (all, without any)."""
    found: dict[str, list[str]] = {}
    for heading, first, cells in _sections(page):
        if headings and heading not in headings:
            continue
        for word in _CODE.findall(first.content):
            assert word not in found, f"{page}: {word} is there twice"
            found[word] = [cell.content for cell in cells[1:]]
    return found


def _default(cells: list[str]) -> str:
    (code,) = _CODE.findall(cells[0])
    return str(code)


def _shown(value: Any) -> str:
    return repr(value).replace("'", '"')


def test_every_policy_word_is_there_with_its_default() -> None:
    rows = _rows(
        "reference/policy.md", "Receiving and acknowledging", "Transactions", "Failing", "Ordering", "Keeping"
    )
    fields = {word: rows.pop(word) for word in Backoff.__struct_fields__}
    assert sorted(rows) == sorted(Policy.__struct_fields__)
    for struct, cells in ((Policy(), rows), (Backoff(), fields)):
        assert {word: _default(row) for word, row in cells.items()} == {
            word: _shown(getattr(struct, word)) for word in cells
        }


def test_every_choice_and_short_name_of_policy_is_there() -> None:
    text = (DOCS / "reference/policy.md").read_text()
    choices = [get_args(hint) for hint in get_type_hints(Policy).values() if get_origin(hint) is Literal]
    assert choices
    for choice in (choice for group in choices for choice in group):
        assert f'`"{choice}"`' in text
    for alias in _ALIASES:
        assert f"`{alias}`" in text


def test_every_word_of_the_app_is_there() -> None:
    words = list(inspect.signature(App).parameters)
    rows = _rows("reference/policy.md", "The app's own words")
    assert list(rows) == words
    for word, cells in list(rows.items())[1:]:
        default = inspect.signature(App).parameters[word].default
        expected = '"oncebox"' if word == "schema" else _shown(default)
        assert _default(cells) == expected, word


def _tree(error: type[BaseException], depth: int = 0) -> Iterator[tuple[str, int]]:
    yield error.__name__, depth
    for child in error.__subclasses__():
        if child.__module__ == "oncebox.errors":
            yield from _tree(child, depth + 1)


def _parents(lines: list[tuple[str, int]]) -> dict[str, str | None]:
    """Names in the order of a tree, with their depth, to the name each stands under."""
    above: dict[int, str] = {}
    places: dict[str, str | None] = {}
    for name, depth in lines:
        above[depth] = name
        places[name] = above[depth - 1] if depth else None
    return places


def test_every_error_is_there_in_its_place() -> None:
    documented = [
        (_CODE.findall(first.content)[0], first.content.count("&emsp;"))
        for heading, first, _ in _sections("reference/errors.md")
        if heading == "The tree"
    ]
    actual = _parents(list(_tree(errors.OnceboxError)))
    assert _parents(documented) == actual
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+)(?:  |$)", errors.__doc__ or "", re.MULTILINE)
    assert _parents([(name, len(branch) // 4) for branch, name in drawn]) == actual


def test_every_outcome_is_there_with_its_answer() -> None:
    rows = _rows("reference/outcomes.md", "Outcomes")
    assert {status: rows[status][0].split(",")[0] for status in Status} == {
        status: str(answer) for status, answer in ANSWERS.items()
    }


def test_every_reason_is_there() -> None:
    assert sorted(_rows("reference/outcomes.md", "Reasons")) == sorted(Reason)


def _columns(dialect: str) -> dict[str, set[str]]:
    """Table to columns, as the migrations leave them."""
    tables: dict[str, set[str]] = {}
    for statement in statements(dialect):
        for name, body in _TABLE.findall(statement):
            lines = body.strip().splitlines() if "\n" in body else re.split(r",(?![^(]*\))", body)
            words = [line.split()[0] for line in lines if line.strip() and not line.strip().startswith("--")]
            tables.setdefault(name, set()).update(word for word in words if word.islower())
        for name, column in re.findall(
            r'ALTER TABLE (?:"oncebox"\.|oncebox_)(\w+) ADD (?:COLUMN )?(\w+)', statement
        ):
            tables[name].add(column)
    return tables


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_table_and_column_is_there(dialect: str) -> None:
    documented: dict[str, set[str]] = {}
    for heading, first, _ in _sections("reference/tables.md"):
        tables = _CODE.findall(heading)
        for word in _CODE.findall(first.content) if tables else ():
            table, _, column = word.rpartition(".")
            assert table or len(tables) == 1, f"{word}: write it as table.column"
            documented.setdefault(table or tables[0], set()).add(column)
    for table, columns in _columns(dialect).items():
        assert columns <= documented.get(table, set()), table
    everywhere = {table for known in DIALECTS for table in _columns(known)}
    assert documented.keys() == everywhere


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_command_and_option_is_there() -> None:
    from oncebox.cli.commands import app

    text = (DOCS / "reference/cli.md").read_text()
    listed = text.partition("## ")[0]
    for name, command in _commands(typer.main.get_command(app)):
        assert f"oncebox {name}" in text, f"oncebox {name} is not in docs/reference/cli.md"
        group, _, verb = name.rpartition(" ")
        start = f"| [`oncebox {group}".rstrip()
        assert any(
            line.startswith(start) and (f"`{verb}`" in line or f" {verb}`" in line)
            for line in listed.splitlines()
        ), f"oncebox {name} is not in the list at the top of docs/reference/cli.md"
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    assert option in text, f"oncebox {name} {option} is not in docs/reference/cli.md"
