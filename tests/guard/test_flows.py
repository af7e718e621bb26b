"""The guard's flows, driven by hand: each step, no database."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox import errors
from oncebox.core import guard
from oncebox.core.run import run
from oncebox.core.steps import Execute, Fetch, Step
from oncebox.engines.queries import load
from oncebox.message import MessageKey

QUERIES = load("postgresql")
KEY = MessageKey("billing", "", "evt-1")
ENTRY = guard.Entry(KEY, "paid", b"x")
FIRST = ("shop oncebox:cafe.7",)
FOUND = ("", "evt-1", "paid", ENTRY.fingerprint(), 0, False, False, None, b"1", False)


class Script:
    """Answers steps by their kind or their query's name, and keeps what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, step: Step) -> Any:
        if isinstance(step, guard.Join):
            return QUERIES
        match step:
            case Fetch():
                name = step.call.query.name
            case Execute():
                name = step.calls[0].query.name
            case _:
                name = type(step).__name__
        self.asked.append(name)
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_new_key_costs_one_statement() -> None:
    script = Script(guard_claim=[FIRST])
    answer = run(guard.claim("oncebox", ENTRY), script)
    assert (answer.first, answer.mark) == (True, "cafe.7")
    assert script.asked == ["guard_claim", "Hold"]


def test_no_row_at_all_is_looked_up_and_never_called_new() -> None:
    script = Script(guard_claim=[], guard_lookup=[FOUND], Held=False, Look=guard.View(open=True))
    answer = run(guard.claim("oncebox", ENTRY), script)
    assert (answer.first, answer.state, answer.body) == (False, "done", b"1")
    assert script.asked[:2] == ["guard_claim", "guard_lookup"]


def test_a_key_that_nobody_has_is_lost_and_worth_another_try() -> None:
    with pytest.raises(errors.ClaimLost, match=r"evt-1.*billing.*try again") as raised:
        run(guard.claim("oncebox", ENTRY), Script(guard_claim=[], guard_lookup=[]))
    assert raised.value.retryable
    with pytest.raises(errors.ClaimLost):
        run(guard.claim_many("oncebox", [ENTRY]), Script(guard_claim_many=[], guard_lookup=[]))


def test_a_lazy_duplicate_is_flushed() -> None:
    lazy = (*FOUND[:5], True, *FOUND[6:])
    script = Script(guard_claim=[], guard_lookup=[lazy], Held=False, Look=guard.View(open=True), vouch=[])
    run(guard.claim("oncebox", ENTRY), script)
    assert script.asked[-1] == "vouch"


def test_a_batch_is_sorted_and_has_each_id_once() -> None:
    sent: list[Any] = []

    def perform(step: Step) -> Any:
        if isinstance(step, Fetch):
            sent.extend((row["source"], row["message_id"]) for row in step.call.params["rows"])
            return [(*key, *FIRST) for key in sent]
        return QUERIES if isinstance(step, guard.Join) else None

    keys = [("b", "1"), ("a", "2"), ("a", "1"), ("b", "1")]
    entries = [guard.Entry(MessageKey("billing", *key)) for key in keys]
    answers = run(guard.claim_many("oncebox", entries), perform)
    assert sent == [("a", "1"), ("a", "2"), ("b", "1")]
    assert [answer.first for answer in answers] == [True, True, True, False]


def leave(script: Script, *, mark: str = "cafe.7", **words: Any) -> None:
    answer = guard.Answer(QUERIES, first=True, mark=mark)
    run(guard.leave(answer, KEY, words.pop("body", None), **{"read": True, "error": None} | words), script)


def test_leaving_costs_nothing_where_the_client_knows_the_mark() -> None:
    script = Script(Look=guard.View(open=True, mark="shop oncebox:cafe.7"))
    leave(script)
    assert script.asked == ["Look"]


def test_after_a_later_claim_its_own_row_is_looked_for() -> None:
    row = ("", "evt-1", "", b"", 0, False, False, None, None)
    script = Script(Look=guard.View(open=True, mark="shop oncebox:cafe.9"), guard_lookup=[(*row, True)])
    leave(script)
    assert script.asked == ["Look", "guard_lookup"]
    for gone in ([], [(*row, False)]):
        with pytest.raises(errors.TransactionEnded):
            leave(Script(Look=guard.View(open=True, mark="shop oncebox:cafe.9"), guard_lookup=gone))


def test_result_is_the_second_statement() -> None:
    script = Script(Look=guard.View(open=True, mark="shop oncebox:cafe.7"))
    leave(script, body=b"1")
    assert script.asked == ["Look", "keep_result"]


@pytest.mark.parametrize("shown", ["", "shop", "shop oncebox:beef.9", "shop oncebox:cafe.6"])
def test_the_server_is_asked_where_the_client_does_not_know(shown: str) -> None:
    script = Script(Look=guard.View(open=True, mark=shown), Ask=[("cafe.7",)])
    leave(script)
    assert script.asked == ["Look", "Ask"]


@pytest.mark.parametrize("told", [None, "", "beef.9", "cafe.6", "cafe."])
def test_another_mark_on_the_server_is_another_transaction(told: str | None) -> None:
    with pytest.raises(errors.TransactionEnded):
        leave(Script(Look=guard.View(open=True), Ask=[(told,)]))


def test_a_failed_transaction_is_named_even_where_only_the_server_knows() -> None:
    with pytest.raises(errors.TransactionAborted, match="evt-1"):
        leave(Script(Look=guard.View(open=True, failed=True)))
    with pytest.raises(errors.TransactionAborted, match="evt-1"):
        leave(Script(Look=guard.View(open=True), Ask=errors.TransactionAborted("25P02")))


def test_an_error_marks_the_row_and_marks_nothing_in_a_failed_transaction() -> None:
    script = Script(Look=guard.View(open=True, mark="shop oncebox:cafe.7"))
    leave(script, error=ZeroDivisionError())
    assert script.asked == ["Look", "mark_unfinished"]
    script = Script(Look=guard.View(open=True, failed=True))
    leave(script, error=ZeroDivisionError())
    assert script.asked == ["Look"]


def test_a_mark_that_can_not_be_set_does_not_hide_the_blocks_error() -> None:
    error = ZeroDivisionError()
    view = guard.View(open=True, mark="shop oncebox:cafe.7")
    leave(Script(Look=view, mark_unfinished=OSError("gone")), error=error)
    assert not hasattr(error, "__notes__")


def test_savepoint_stands_for_the_transaction_where_the_database_has_no_mark() -> None:
    script = Script(guard_claim=[("",)])
    answer = run(guard.claim("oncebox", ENTRY), script)
    assert answer.mark.startswith("oncebox_claim_")
    script = Script(Look=guard.View(open=True))
    leave(script, mark=answer.mark)
    assert script.asked == ["Look", "Release"]
    with pytest.raises(errors.TransactionEnded, match="evt-1"):
        leave(Script(Look=guard.View(open=True), Release=errors.TransactionEnded("gone")), mark=answer.mark)
