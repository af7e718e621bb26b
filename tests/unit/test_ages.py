"""When a message was made, as far as it says so itself."""

from typing import Any

import pytest

from oncebox import Message
from oncebox.core.outgoing import new_id
from oncebox.identity.ages import made_at

AT = 1_700_000_000.5
ISO = "2023-11-14T22:13:20.5+00:00"
UUID7 = "018bcfe5-69f4-7abc-8def-0123456789ab"
ULID = "01HF7YATFM0123456789ABCDEF"


@pytest.mark.parametrize(
    "words",
    [
        {"headers": {"ce-time": ISO}},
        {"headers": {"CE-Time": "2023-11-14T22:13:20.5Z"}},
        {"headers": {"ce_time": "2023-11-14T23:13:20.5+01:00"}},
        {"headers": {"cloudEvents:time": ISO}},
        {"headers": {"cloudEvents_time": "2023-11-14T22:13:20.5"}},
        {"provenance": {"timestamp": 1_700_000_000_500}},
        {"provenance": {"timestamp": ISO}},
        {"provenance": {"sent": "1700000000500"}},
        {"provenance": {"stream": "payments", "id": "1700000000500-0"}},
        {"id": UUID7},
        {"id": UUID7.upper().replace("-", "")},
        {"id": ULID},
        # The event's own time comes first, the id's last.
        {"headers": {"ce-time": ISO}, "provenance": {"timestamp": 1_600_000_000_000}, "id": new_id()},
        {"provenance": {"timestamp": ISO}, "id": new_id()},
    ],
)
def test_is_found_where_it_is_said(words: dict[str, Any]) -> None:
    assert made_at(Message(**{"id": "evt-1", **words})) == AT


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"headers": {"ce-time": "yesterday"}},
        {"headers": {"ce-time": b"\xff"}},
        {"provenance": {"timestamp": -1}},
        {"provenance": {"timestamp": "9" * 400}},
        {"provenance": {"timestamp": None, "sent": ["x"]}},
        {"provenance": {"timestamp": 5}},
        {"provenance": {"stream": "PAYMENTS", "id": "1700000000500"}},
        {"id": "018bcfe5-69f4-4abc-8def-0123456789ab"},
        {"id": "8ZZZZZZZZZ0123456789ABCDEF"},
        {"id": "ffffffff-ffff-7abc-8def-0123456789ab"},
    ],
)
def test_nothing_is_made_up(words: dict[str, Any]) -> None:
    assert made_at(Message(**{"id": "evt-1", **words})) is None
