"""Every relative link in the documentation leads to a file that is there, and to a heading in it."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def _inline(page: Path) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        yield from token.children or ()


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    found: dict[str, int] = {}
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    for opening, heading in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            plain = "".join(
                child.content for child in heading.children or () if child.type in ("text", "code_inline")
            )
            name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            found[f"{name}-{found[name]}" if name in found else name] = 1
    return set(found)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for token in _inline(page):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        if not target or "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken
