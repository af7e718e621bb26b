"""What the guard's flows ask of a handle beyond statements, and the values they pass around."""

from __future__ import annotations

import msgspec

from oncebox import errors, identity
from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Step
from oncebox.message import MessageKey
from oncebox.policy import Fingerprint


class Join(Step, frozen=True, gc=False):
    """Reach the user's transaction. Reply: the queries of its database, for tables in `schema`.

    Raises AutocommitHandle where there is none to join and none will open by itself.
    """

    schema: str


class Look(Step, frozen=True, gc=False):
    """What the client library knows without asking the server. Reply: a `View`."""


class Ask(Step, frozen=True, gc=False):
    """Ask the server for the transaction's mark. Reply: one row of one column."""


class Hold(Step, frozen=True, gc=False):
    """The key is ours from here on; `savepoint`, if any, must still be there at the block's end."""

    key: MessageKey
    savepoint: str = ""


class Release(Step, frozen=True, gc=False):
    """Let go of a savepoint; TransactionEnded if it is gone."""

    savepoint: str


class Held(Step, frozen=True, gc=False):
    """Is a row that we see this transaction's own? Reply: a bool.

    `ours` is the database's word, None where it can't say; `call` looks the row up.
    """

    key: MessageKey
    ours: bool | None
    call: Call


class View(msgspec.Struct, frozen=True, gc=False):
    """A transaction as the client library sees it. `mark` is what it shows of the guard's mark."""

    open: bool
    failed: bool = False
    mark: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One delivery: its key, and what must be the same in every other delivery of it."""

    key: MessageKey
    type: str = ""
    payload: bytes | None = None
    how: Fingerprint = "raw"

    def fingerprint(self) -> bytes:
        """Of type and payload; empty where no payload was given, so that there is nothing to compare."""
        return b"" if self.payload is None else identity.fingerprint(self.type, self.payload, self.how)

    def clash(self, stored_type: str, stored_fingerprint: bytes) -> str:
        """What differs from the stored delivery, by name; what one side did not give is not compared."""
        if stored_type and self.type and stored_type != self.type:
            return "type"
        if not stored_fingerprint or self.payload is None:
            return ""
        # Under the stored type, so that a type given on one side only is no conflict.
        same = identity.fingerprint(stored_type, self.payload, self.how) == stored_fingerprint
        return "" if same else "payload"


class Answer(msgspec.Struct, gc=False):
    """What the ledger says about a delivery."""

    queries: Queries
    first: bool
    mark: str = ""
    state: str = "new"
    reason: str = ""
    body: bytes | None = None
    error: errors.ClaimError | None = None
    observed: str = ""
    """What an inbox that only observes would have called it: `duplicate` or `conflict`."""
