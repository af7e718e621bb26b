"""Forked processes, for what is killed here."""

from tests.crash.conftest import nursery, warm_nursery

__all__ = ["nursery", "warm_nursery"]
