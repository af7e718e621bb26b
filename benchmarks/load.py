"""What is sent: payments over accounts, as messages of a given size."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from oncebox import Message

ACCOUNTS = 10_000
TYPE = "payment.captured"
HISTORY_MAX = 20_000


class Payment(msgspec.Struct):
    """The part of the payload that the effect needs. An amount of 0 makes the handler fail."""

    account: int
    amount: int


decode = msgspec.json.Decoder(Payment).decode

_zipf = list(itertools.accumulate(1.0 / rank for rank in range(1, ACCOUNTS + 1)))
_everyone = range(1, ACCOUNTS + 1)


class Load:
    """A stream of messages. Accounts are uniform, or Zipf (exponent 1: the first has a tenth)."""

    def __init__(
        self,
        *,
        accounts: Literal["uniform", "zipf"] = "uniform",
        payload_bytes: int = 300,
        duplicates: float = 0.0,
        failing_every: int = 0,
        keyed: bool = False,
    ) -> None:
        self.accounts = accounts
        self.payload_bytes = payload_bytes
        self.duplicates = duplicates
        self.failing_every = failing_every
        self.keyed = keyed
        self._filler = "x" * max(0, payload_bytes - 165)
        self._tag = os.urandom(4).hex()
        self._numbers = itertools.count(1)
        self._random = random.Random(4)
        self._history: list[Message] = []
        self.effects = 0
        """Effects that the messages made so far must have had."""

    def fresh(self, count: int) -> list[Message]:
        """Messages that were never sent before."""
        accounts = self._draw(count)
        made = [self._message(next(self._numbers), account) for account in accounts]
        failing = len(made) // self.failing_every if self.failing_every else 0
        self.effects += len(made) - failing
        if self.duplicates:
            self._history = (self._history + made)[-HISTORY_MAX:]
        return made

    def make(self, count: int) -> list[Message]:
        """The next slice: fresh messages, with the share of earlier ones that was asked for."""
        if self.failing_every:
            count = max(count // self.failing_every, 1) * self.failing_every
        if not self.duplicates:
            return self.fresh(count)
        again = round(count * self.duplicates)
        old = self._random.choices(self._history, k=again)
        slice_ = old + self.fresh(count - again)
        self._random.shuffle(slice_)
        return slice_

    def _draw(self, count: int) -> Sequence[int]:
        if self.accounts == "zipf":
            return self._random.choices(_everyone, cum_weights=_zipf, k=count)
        return self._random.choices(_everyone, k=count)

    def _message(self, number: int, account: int) -> Message:
        name = f"evt-{self._tag}-{number:09d}"
        failing = self.failing_every and number % self.failing_every == 0
        payload = {
            "id": name,
            "account": account,
            "amount": 0 if failing else 1,
            "currency": "EUR",
            "captured_at": "2026-01-31T12:00:00.000000Z",
            "method": {"kind": "card", "last4": "4242"},
            "note": self._filler,
        }
        key = str(account) if self.keyed else None
        return Message(id=name, type=TYPE, source="payments", payload=msgspec.json.encode(payload), key=key)
