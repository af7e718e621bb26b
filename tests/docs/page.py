"""Run the Python blocks of one Markdown page, in order, in one namespace and the current folder.

Used as a script: `python page.py PAGE`. Errors carry the page's own line numbers.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from markdown_it import MarkdownIt

_INFO = re.compile(r'python(?: title="(?P<title>[\w.-]+)")?')
# Other spellings of the language would be shown as Python and never run.
_ALIASES = ("py", "python3", "pycon")


@dataclass(frozen=True)
class Block:
    code: str
    line: int  # of the code's first line, counted from 1
    title: str | None  # a file to write as well, so that later blocks and commands can import it


def blocks(page: Path) -> list[Block]:
    """The page's Python blocks. A Python fence that would not run is an error."""
    found = []
    for token in MarkdownIt().parse(page.read_text()):
        language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
        if token.type != "fence" or not (language.startswith("python") or language in _ALIASES):
            continue
        assert token.map is not None
        line = token.map[0] + 1
        info = _INFO.fullmatch(token.info.strip())
        if info is None:
            raise ValueError(
                f"{page}:{line}: ```{token.info}: every block runs, "
                'so write ```python or ```python title="name.py"'
            )
        found.append(Block(token.content, line + 1, info["title"]))
    return found


def run(page: Path) -> None:
    # A real module: msgspec, pydantic and dataclasses look annotations up in sys.modules.
    # Its name is not __main__, so a page may show `if __name__ == "__main__":` as readers write it.
    module = ModuleType("page")
    sys.modules["page"] = module
    sys.path.insert(0, "")
    for block in blocks(page):
        if block.title is not None:
            Path(block.title).write_text(block.code)
        tree = ast.increment_lineno(ast.parse(block.code, str(page)), block.line - 1)
        exec(compile(tree, str(page), "exec"), module.__dict__)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
