"""The table of statuses, in the code and in the documentation."""

import re
from pathlib import Path

import pytest

from oncebox.core.outcomes import ANSWERS, Answer, Outcome, Reason, Status
from oncebox.webhooks.answers import NAMELESS, STATUSES, answer_many, answer_one, retry_after

PAGE = Path(__file__).parents[2] / "docs/how-to/webhooks.md"


def test_2xx_is_exactly_what_a_broker_would_get_an_ack_for() -> None:
    assert {status for status, code in STATUSES.items() if code < 300} == {
        status for status, answer in ANSWERS.items() if answer is Answer.ACK
    }


def test_the_page_has_every_outcome_with_its_status() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| (\d+)[^|]*\| ", PAGE.read_text(), re.MULTILINE)
    told = {word: int(code) for words, code in rows for word in re.findall(r"`(\w+)`", words)}
    assert told == {str(status): code for status, code in STATUSES.items()}


@pytest.mark.parametrize("reason", list(Reason))
def test_the_sender_hears_of_a_dead_message_only_where_its_id_is_at_fault(reason: Reason) -> None:
    answer = answer_one("a", Outcome(Status.DEAD, reason=reason))
    assert answer.status == (422 if reason in NAMELESS else 200)
    assert {"conflict", "no identity"} == NAMELESS


def test_a_batch_is_sent_again_when_one_entry_must_be() -> None:
    done, dead = Outcome(Status.PROCESSED), Outcome(Status.DEAD, reason=Reason.CONFLICT)
    busy, later = Outcome(Status.IN_FLIGHT, delay_seconds=1), Outcome(Status.RETRY, delay_seconds=2.1)
    assert answer_many([("a", done), ("b", dead)]).status == 200
    assert answer_many([("a", done), ("b", busy)]).status == 409
    both = answer_many([("a", busy), ("b", later), ("c", done)])
    assert (both.status, dict(both.headers)[b"retry-after"]) == (503, b"3")


def test_retry_after_is_whole_seconds_within_bounds() -> None:
    assert [retry_after(seconds)[1] for seconds in (0, 0.2, 1.5, 9_999_999)] == ["1", "1", "2", "3600"]
