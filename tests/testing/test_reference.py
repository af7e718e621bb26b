"""What the kit offers is documented: every name, word, field, fault and fixture."""

import inspect
import re
from pathlib import Path
from typing import get_args

from oncebox import testing
from oncebox.testing import Proof, deliver, plugin, prove_once, prove_once_async
from oncebox.testing.story import ADVICE, FaultName
from oncebox.testing.tables.state import SIZE_BYTES_MAX

PAGE = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text()


def _first_cells(heading: str) -> set[str]:
    """The code words in the first cells of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_public_name_is_there() -> None:
    assert _first_cells("Calls") | _first_cells("Doubles") | {"Proof", "NotOnce"} == set(testing.__all__)


def test_every_word_is_there_with_its_default() -> None:
    words = {
        name: parameter.default
        for name, parameter in inspect.signature(prove_once).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name, default in words.items():
        shown = repr(default).replace("'", '"')
        assert f"| `{name}` | `{shown}` |" in PAGE
    assert _first_cells("Words of `prove_once`") == set(words)
    assert inspect.signature(prove_once_async).parameters == inspect.signature(prove_once).parameters
    assert inspect.signature(deliver).parameters["times"].default == 3


def test_every_fault_field_and_fixture_is_there() -> None:
    assert _first_cells("Faults") == set(get_args(FaultName)) == set(ADVICE)
    assert _first_cells("A proof") == set(Proof.__struct_fields__)
    fixtures = {name for name in vars(plugin) if name.startswith("oncebox_")}
    assert _first_cells("Fixtures") == fixtures
    assert f"{SIZE_BYTES_MAX >> 20} MiB" in PAGE
