"""What a claim says: results, conflicts, states, and what can't be claimed at all."""

# ruff: noqa: PT012 - the block is what is tested

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from oncebox import errors
from oncebox.identity import fingerprint
from oncebox.inbox import Inbox
from oncebox.message import Message
from tests.guard.rigs import Rig, settle
from tests.guard.test_deliveries import deliver

SECRET = "hunter2-canary"


async def deliver_with_result(rig: Rig, inbox: Inbox, value: Any) -> Any:
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        if claim.first:
            claim.result = value
    return claim.result


async def test_first_and_duplicates_read_the_same_result(rig: Rig, inbox: Inbox) -> None:
    value = {"entry": 9001, "lines": [1, 2.5, None, True, "ü\u0000"]}
    assert await deliver_with_result(rig, inbox, value) == value
    assert await deliver_with_result(rig, inbox, "ignored by a duplicate") == value


async def test_result_reads_back_at_once_as_a_duplicate_will_read_it(rig: Rig, inbox: Inbox) -> None:
    @dataclasses.dataclass
    class Entry:
        lines: tuple[int, ...]

    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        assert claim.first
        assert claim.result is None
        claim.result = Entry((1, 2))
        assert claim.result == {"lines": [1, 2]}
        claim.result = {"second": "wins"}
    assert await deliver_with_result(rig, inbox, None) == {"second": "wins"}


async def test_no_result_is_none_for_all(rig: Rig, inbox: Inbox) -> None:
    assert await deliver_with_result(rig, inbox, None) is None
    assert await deliver_with_result(rig, inbox, 1) is None
    assert rig.rows("SELECT count(*) FROM oncebox.result") == [(0,)]


async def test_result_is_set_by_the_first_delivery_inside_its_block_or_not_at_all(
    rig: Rig, inbox: Inbox
) -> None:
    async with rig.transaction() as desk:
        async with desk.once(inbox, "evt-1") as claim:
            assert claim.first
            with pytest.raises(errors.UsageError, match="no JSON form"):
                claim.result = object()
        with pytest.raises(errors.UsageError, match="inside"):
            claim.result = 1
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        assert not claim.first
        with pytest.raises(errors.UsageError, match="duplicate"):
            claim.result = 2
    assert claim.result is None


async def test_result_of_a_block_that_raised_is_not_kept(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        with pytest.raises(ZeroDivisionError):
            async with desk.once(inbox, "evt-1") as claim:
                assert claim.first
                claim.result = 1
                raise ZeroDivisionError
    assert rig.rows("SELECT count(*) FROM oncebox.result") == [(0,)]


async def test_same_id_with_another_payload_or_type_is_a_conflict(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, payload=b"one", type="paid")
    assert not await deliver(rig, inbox, payload=b"one", type="paid")
    with pytest.raises(errors.PayloadConflict, match=r"evt-1.*billing.*another payload.*source=") as raised:
        await deliver(rig, inbox, payload=SECRET, type="paid")
    assert SECRET not in str(raised.value)
    with pytest.raises(errors.PayloadConflict, match="another type"):
        await deliver(rig, inbox, payload=b"one", type="refunded")
    assert rig.effects() == 1


async def test_payload_or_type_that_one_side_did_not_give_is_not_compared(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, "a", payload=b"one", type="paid")
    assert not await deliver(rig, inbox, "a")
    assert not await deliver(rig, inbox, "a", payload=b"one")
    assert not await deliver(rig, inbox, "a", type="paid")
    with pytest.raises(errors.PayloadConflict):
        await deliver(rig, inbox, "a", payload=b"two")
    assert await deliver(rig, inbox, "b")
    assert not await deliver(rig, inbox, "b", payload=b"anything", type="any")


async def test_payload_is_bytes_text_or_what_json_can_say(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, payload={"amount": 1})
    assert not await deliver(rig, inbox, payload='{"amount":1}')
    assert not await deliver(rig, inbox, payload=b'{"amount":1}')
    with pytest.raises(errors.PayloadConflict):
        await deliver(rig, inbox, payload={"amount": 2})


async def test_canonical_fingerprint_ignores_whitespace_and_key_order(rig: Rig) -> None:
    pytest.importorskip("rfc8785")
    inbox = Inbox("billing", fingerprint="canonical")
    assert await deliver(rig, inbox, payload=b'{"a": 1, "b": 2}')
    assert not await deliver(rig, inbox, payload=b'{"b":2,"a":1}')
    with pytest.raises(errors.PayloadConflict):
        await deliver(rig, inbox, payload=b'{"b":2,"a":2}')


async def test_missing_tables_name_the_command_that_makes_them(rig: Rig) -> None:
    elsewhere = Inbox("billing", schema="elsewhere")
    with pytest.raises(errors.SchemaMissing, match="run: oncebox migrate"):
        await deliver(rig, elsewhere)


async def test_message_that_the_app_has_stored_is_waiting_and_no_first(rig: Rig, inbox: Inbox) -> None:
    mark = fingerprint("paid", b"x").hex()
    blob = f"'\\x{mark}'" if rig.engine == "postgresql" else f"x'{mark}'"
    now = "now()" if rig.engine == "postgresql" else "0"
    rig.write(
        "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint, received, seq) "
        f"VALUES ('billing', '', 'evt-1', 'paid', {blob}, {now}, 41)"
    )
    rig.write(
        "INSERT INTO oncebox.queue (seq, consumer, source, message_id, type, fingerprint, payload, headers, "
        f"content_type, provenance, received, due) VALUES (41, 'billing', '', 'evt-1', 'paid', {blob}, '', '', "
        f"'', '', {now}, {now})"
    )
    async with rig.transaction() as desk, desk.once(inbox, "evt-1", type="paid", payload=b"x") as claim:
        assert not claim.first
        assert claim.state == "waiting"
    with pytest.raises(errors.PayloadConflict):
        await deliver(rig, inbox, type="paid", payload=b"y")


async def test_dead_message_is_no_first_and_says_why(rig: Rig, inbox: Inbox) -> None:
    now, empty = ("now()", "''") if rig.engine == "postgresql" else ("0", "x''")
    rig.write(
        "INSERT INTO oncebox.ledger (consumer, source, message_id, type, fingerprint, received) "
        f"VALUES ('billing', '', 'evt-1', '', {empty}, {now})"
    )
    rig.write(
        "INSERT INTO oncebox.dead (consumer, source, message_id, type, fingerprint, payload, headers, "
        f"content_type, provenance, received, died, reason) VALUES ('billing', '', 'evt-1', '', {empty}, '', '', "
        f"'', '', {now}, {now}, 'exhausted')"
    )
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        assert not claim.first
        assert (claim.state, claim.reason) == ("dead", "exhausted")


async def test_state_of_a_duplicate_is_what_became_of_the_first(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
        assert claim.state == "new"
    for state, name in ((0, "done"), (2, "discarded"), (3, "stale"), (4, "suppressed")):
        rig.write(f"UPDATE oncebox.ledger SET state = {state}")
        async with rig.transaction() as desk, desk.once(inbox, "evt-1") as claim:
            assert claim.state == name


async def test_duplicate_of_a_lazy_commit_is_flushed_by_its_own_commit(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox)
    rig.write("UPDATE oncebox.ledger SET lazy = (1 = 1)")
    before = _log_position(rig)
    assert not await deliver(rig, inbox)
    after = _log_position(rig)
    if rig.engine == "postgresql":
        assert after > before
    rig.write("UPDATE oncebox.ledger SET lazy = (1 = 0)")


def _log_position(rig: Rig) -> Any:
    """How far the log is on disk."""
    if rig.engine == "sqlite":
        return None
    return rig.rows("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")[0][0]


# Batches.


def message(message_id: str, payload: bytes = b"", source: str = "") -> Message:
    return Message(id=message_id, payload=payload, source=source)


async def test_batch_is_claimed_in_order_and_answers_per_message(rig: Rig, inbox: Inbox) -> None:
    assert await deliver_with_result(rig, inbox, {"entry": 1}) == {"entry": 1}
    batch = [message("evt-3"), message("evt-1"), message("evt-2", source="b"), message("evt-2", source="a")]
    async with rig.transaction() as desk:
        claims = await desk.claim_many(inbox, batch)
        assert [claim.key.id for claim in claims] == ["evt-3", "evt-1", "evt-2", "evt-2"]
        assert [claim.first for claim in claims] == [True, False, True, True]
        assert claims[1].result == {"entry": 1}
    async with rig.transaction() as desk:
        assert not any(await desk.claim_many(inbox, batch))


async def test_second_delivery_inside_a_batch_is_a_duplicate_of_the_first(rig: Rig, inbox: Inbox) -> None:
    batch = [message("evt-1", b"a"), message("evt-2"), message("evt-1", b"a"), message("evt-1", b"b")]
    async with rig.transaction() as desk:
        claims = await desk.claim_many(inbox, batch)
        assert [claim.first for claim in claims[:3]] == [True, True, False]
        assert isinstance(claims[3].error, errors.PayloadConflict)
        with pytest.raises(errors.PayloadConflict):
            bool(claims[3])


async def test_every_delivery_in_a_batch_is_compared_with_what_is_known(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, payload=b"a")
    batch = [message("evt-1", b"b"), message("evt-1", b"b"), message("evt-1", b"a")]
    async with rig.transaction() as desk:
        claims = await desk.claim_many(inbox, batch)
        kinds = [type(claim.error) for claim in claims]
        assert kinds == [errors.PayloadConflict, errors.PayloadConflict, type(None)]
        assert not claims[2].first


async def test_one_bad_message_does_not_stop_its_batch(rig: Rig, inbox: Inbox) -> None:
    assert await deliver(rig, inbox, "evt-1", payload=b"a")
    async with rig.transaction() as desk:
        with pytest.raises(ZeroDivisionError):
            async with desk.once(inbox, "evt-2") as claim:
                assert claim.first
                raise ZeroDivisionError
    async with rig.transaction() as desk:
        async with desk.once(inbox, "evt-3") as claim:
            assert claim.first
        claims = await desk.claim_many(inbox, [message(f"evt-{n}", b"b") for n in (1, 2, 3, 4)])
        kinds = [type(claim.error) for claim in claims]
        assert kinds == [
            errors.PayloadConflict, errors.UnfinishedClaim, errors.AlreadyClaimed, type(None)
        ]  # fmt: skip
        assert claims[3].first


async def test_rolled_back_batch_leaves_nothing(rig: Rig, inbox: Inbox) -> None:
    batch = [message(f"evt-{n}") for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        async with rig.transaction() as desk:
            assert all(await desk.claim_many(inbox, batch))
            raise ZeroDivisionError
    async with rig.transaction() as desk:
        assert all(await desk.claim_many(inbox, batch))


async def test_batch_keeps_no_results_and_says_so(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        (claim,) = await desk.claim_many(inbox, [message("evt-1")])
        with pytest.raises(errors.UsageError, match=r"once\(\)"):
            claim.result = 1


async def test_empty_batch_and_a_batch_over_the_limit(rig: Rig, inbox: Inbox) -> None:
    async with rig.transaction() as desk:
        assert await desk.claim_many(inbox, []) == []
        with pytest.raises(errors.TooLarge, match="10,000"):
            await settle(inbox.claim_many(desk.handle, [message("evt-1")] * 10_001))
