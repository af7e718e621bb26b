"""Every guarantee names the tests that show it, and they exist."""

import ast
import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
LIMITS = "What is not promised"


def _sentences() -> list[tuple[str, Token]]:
    """Every item of a list, with the heading it stands under."""
    heading, found = "", []
    tokens = MarkdownIt("commonmark").parse(PAGE.read_text())
    depth = 0
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[at + 1].content
        depth += (token.type == "list_item_open") - (token.type == "list_item_close")
        if token.type == "inline" and depth:
            found.append((heading, token))
    return found


def _tests(sentence: Token) -> list[tuple[str, str]]:
    """(file, test) of every link to a test."""
    found = []
    children = sentence.children or []
    for at, child in enumerate(children):
        target = str(child.attrGet("href") or "") if child.type == "link_open" else ""
        if target.startswith("../tests/"):
            found.append((target.removeprefix("../"), children[at + 1].content))
    return found


@cache
def _names(file: str) -> frozenset[str]:
    """Tests at the top level of a file; those in classes and functions are not collected by their name."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def test_every_sentence_names_a_test() -> None:
    unshown = [text.content for heading, text in _sentences() if heading != LIMITS and not _tests(text)]
    assert not unshown


def test_every_test_that_is_named_exists() -> None:
    named = [pair for _, text in _sentences() for pair in _tests(text)]
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or name not in _names(file) or not name.startswith("test_")
    ]
    assert not missing


def test_a_test_is_named_as_it_is_written_in_its_link() -> None:
    # A link without the code mark, or to a whole file, would escape the test above.
    links = re.findall(r"\]\(\.\./tests/", PAGE.read_text())
    assert len(links) == sum(len(_tests(text)) for _, text in _sentences())


def test_limits_are_said_as_plainly_as_promises() -> None:
    assert len([text for heading, text in _sentences() if heading == LIMITS]) >= 10
