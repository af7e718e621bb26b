"""examples/cases.py: the page and the notices follow the versions; a rebuild makes the same page and mails nobody."""

from typing import Any

from oncebox import Message
from tests.examples.conftest import Rows
from tests.waiting import eventually_async

EVENTS = "SELECT case_id, version FROM case_event ORDER BY case_id, n"
PAGE = "SELECT case_id, version, state, last_by FROM case_page ORDER BY case_id"
MAIL = "SELECT case_id, body FROM mail ORDER BY case_id, n"
MAILS = [(f"c-{n}", f"your case is {state}") for n in (1, 2, 3) for state in ("opened", "closed")]


async def test_shuffled_and_doubled_changes_take_effect_in_order_and_once(example: Any, rows: Rows) -> None:
    assert [message.id for message in example.changes()] != sorted(
        message.id for message in example.changes()
    )
    await example.main()
    assert rows(EVENTS) == [(f"c-{n}", version) for n in (1, 2, 3) for version in (1, 2, 3, 4)]
    assert rows(PAGE) == [(f"c-{n}", 4, "closed", "clerk 4") for n in (1, 2, 3)]
    assert rows(MAIL) == MAILS
    assert rows("SELECT count(*) FROM oncebox.queue") == [(0,)]


async def test_a_rebuild_makes_a_ruined_page_anew_and_mails_nobody(example: Any, rows: Rows) -> None:
    await example.main()
    page = rows(PAGE)
    with example.closing(example.connect(example.URL.removeprefix("sqlite:///"))) as conn:
        conn.execute("UPDATE case_page SET state = 'ruined', version = 99")
        conn.commit()
    assert example.rebuild() == 12
    assert rows(PAGE) == page
    assert rows(EVENTS) == [(f"c-{n}", version) for n in (1, 2, 3) for version in (1, 2, 3, 4)]
    async with example.app.running():
        pass
    assert rows(MAIL) == MAILS


async def test_replayed_notices_are_not_sent_again(example: Any, rows: Rows) -> None:
    await example.main()
    run = example.replay(example.notices, reason="a look")
    example.app.close()
    assert (run.handled, run.suppressed) == (12, 6)
    assert rows("SELECT count(*) FROM oncebox.queue") == [(0,)]
    async with example.app.running():
        pass
    assert rows(MAIL) == MAILS


def test_the_page_shows_the_newest_whatever_it_is_told_last(example: Any, rows: Rows) -> None:
    with example.closing(example.connect(example.URL.removeprefix("sqlite:///"))) as conn:
        for version in (2, 3, 1, 3):
            example.project(conn, example.CaseChanged("x", version, f"state {version}", "me"))
        conn.commit()
    assert rows(PAGE) == [("x", 3, "state 3", "me")]


async def test_an_early_change_waits_for_the_one_before_it(example: Any, rows: Rows) -> None:
    def change(version: int, state: str) -> Message:
        payload = example.CaseChanged("y", version, state, "me")
        return Message(id=f"y-{version}", source="desk", type="case.changed", payload=payload)

    await example.main()
    async with example.app.running():
        example.broker.put("search", change(2, "closed"))
        await example.broker.drained("search")
        assert rows("SELECT count(*) FROM case_page WHERE case_id = 'y'") == [(0,)]
        assert rows("SELECT lane, version FROM oncebox.queue") == [("y", 2)]
        example.broker.put("search", change(1, "opened"))
        await eventually_async(lambda: rows(PAGE)[-1] == ("y", 2, "closed", "me"), 30)
    assert rows("SELECT version FROM case_event WHERE case_id = 'y' ORDER BY n") == [(1,), (2,)]
