"""What only Django has: atomic() that rolls back without a word, and TestCase."""

# ruff: noqa: PT012, SIM117 - the block is what is tested

from __future__ import annotations

import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import TestCase
from django.utils.connection import ConnectionProxy

from oncebox import errors
from oncebox.inbox import Inbox
from tests.guard.rigs_django import database

INBOX = Inbox("billing")


@pytest.fixture(params=["sqlite", "postgresql"])
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    fixture = "guard_sqlite_path" if request.param == "sqlite" else "guard_pg_url"
    with database(request.getfixturevalue(fixture)) as name:
        yield name


def deliver(alias: str, message_id: str = "evt-1") -> bool:
    with transaction.atomic(using=alias), INBOX.once(connections[alias], message_id) as claim:
        first: bool = claim.first
    return first


def test_the_proxy_and_the_wrapper_are_both_handles(alias: str) -> None:
    proxy: Any = ConnectionProxy(connections, alias)
    with transaction.atomic(using=alias), INBOX.once(proxy, "evt-1") as claim:
        assert claim.first
    assert not deliver(alias)


def test_rollback_that_atomic_keeps_to_itself_is_caught(alias: str) -> None:
    # An inner atomic() without a savepoint fails, its error is swallowed: the outer one will roll
    # back and return as if nothing had happened.
    with pytest.raises(errors.TransactionAborted):
        with transaction.atomic(using=alias), INBOX.once(connections[alias], "evt-1") as claim:
            assert claim.first
            with (
                pytest.raises(ZeroDivisionError),
                transaction.atomic(using=alias, savepoint=False),
            ):
                raise ZeroDivisionError
    assert deliver(alias)


def test_inner_atomic_that_fails_on_its_own_savepoint_is_fine(alias: str) -> None:
    with transaction.atomic(using=alias), INBOX.once(connections[alias], "evt-1") as claim:
        assert claim.first
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            raise ZeroDivisionError
    assert not deliver(alias)


def test_block_in_an_inner_atomic_goes_with_it(alias: str) -> None:
    with transaction.atomic(using=alias):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            with INBOX.once(connections[alias], "evt-1") as claim:
                assert claim.first
                raise ZeroDivisionError
    assert deliver(alias)


def test_middleware_and_handler_in_nested_atomics_are_refused(alias: str) -> None:
    with pytest.raises(errors.AlreadyClaimed):
        with transaction.atomic(using=alias), INBOX.once(connections[alias], "evt-1") as claim:
            assert claim.first
            deliver(alias)


class Deliveries(TestCase):  # type: ignore[misc]
    """Run by the test below, on its database."""

    __test__ = False

    def test_redelivery(self) -> None:
        (alias,) = self.databases
        assert deliver(alias)
        assert not deliver(alias)

    def test_mistakes(self) -> None:
        (alias,) = self.databases
        assert deliver(alias), "the other test was rolled back"
        with pytest.raises(errors.AlreadyClaimed), transaction.atomic(using=alias):
            with INBOX.once(connections[alias], "evt-2") as claim:
                assert claim.first
            deliver(alias, "evt-2")
        with pytest.raises(errors.AutocommitHandle, match="TestCase"):
            with INBOX.once(connections[alias], "evt-3"):
                pass


def test_test_case_sees_deliveries_as_production_would(alias: str) -> None:
    Deliveries.databases = {alias}
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Deliveries)
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 2
    assert (result.failures, result.errors) == ([], [])
    assert deliver(alias)
