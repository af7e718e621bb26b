"""Every finding is documented as it is, and brought about by a test."""

from __future__ import annotations

import re
from pathlib import Path

from oncebox.cli.doctor import EXIT_CODES
from oncebox.doctor import KINDS, Severity
from oncebox.doctor.findings import BROKERS, POLICIES
from oncebox.doctor.kinds import DATABASE, STANDING

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"
_ROW = re.compile(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_every_finding_is_on_the_page_word_for_word() -> None:
    rows = {code: (severity, why, do) for code, severity, why, do in _ROW.findall(PAGE.read_text())}
    assert rows == {code: (str(kind.severity), kind.why, kind.do) for code, kind in KINDS.items()}
    assert len(KINDS) == len(DATABASE) + len(BROKERS) + len(POLICIES) + len(STANDING), "a code is there twice"


def test_every_finding_is_brought_about_by_a_test() -> None:
    here = Path(__file__)
    text = "".join(page.read_text() for page in sorted(here.parent.glob("test_*.py")) if page != here)
    assert [code for code in KINDS if f'"{code}"' not in text] == []


def test_exit_codes_are_on_the_page() -> None:
    text = PAGE.read_text()
    for severity in Severity:
        assert f"| {EXIT_CODES[severity]} | " in text
    assert EXIT_CODES[None] == 0
