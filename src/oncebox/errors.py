"""Every error oncebox raises or understands, in one tree.

::

    OnceboxError
    ├── UsageError                    the call is wrong; the text names the next step
    │   ├── ConfigError               policy, TOML, environment, start-up checks
    │   ├── HandlerError              a handler's signature can't be served (at registration)
    │   ├── MessageError              an id, header or body that can't be taken
    │   │   └── TooLarge              … because it is over a limit
    │   ├── UndecodablePayload        the body does not fit the handler's annotation
    │   ├── UnknownHandle             not a database handle that the guard knows
    │   ├── AutocommitHandle          a handle without a transaction to join
    │   └── SchemaError               the tables are not what this version works with
    │       ├── SchemaMissing         … there are none: oncebox migrate
    │       └── SchemaOutdated        … older or newer ones
    ├── ClaimError                    the guard refuses to let a mistake lose a message
    │   ├── AlreadyClaimed            this transaction holds the key already
    │   ├── ClaimUnread               the block never looked at the claim
    │   ├── PayloadConflict           same id, other payload or type
    │   ├── UnfinishedClaim           an earlier body failed and was committed all the same
    │   └── ClaimLost                 the database would not say whose the key is; try again
    ├── TransactionError              the handler's transaction is not what it was
    │   ├── TransactionEnded          committed or rolled back by the handler itself
    │   └── TransactionAborted        a database error was swallowed; nothing can be committed
    ├── DatabaseError                 what an engine's driver raised, translated
    │   ├── DatabaseUnavailable       connection refused or lost; nothing is charged
    │   │   └── CommitUnknown         lost during COMMIT: never acked, redelivery resolves it
    │   ├── Conflict                  deadlock or serialization failure: run again, uncharged
    │   └── LockBusy                  a lock was not granted in time
    ├── BrokerError                   what a broker's client raised, translated
    │   ├── BrokerUnavailable         connection refused, lost or closed; nothing is charged
    │   └── QueueFull                 the broker took nothing: a bound of its own is reached
    ├── StoreError                    a payload kept in a store is missing or damaged
    ├── ArchiveError                  an archive can't be reached, or a part of it is damaged
    ├── LeaseLost                     another worker took over; our effects are rolled back
    ├── ReplayFailed                  a handler failed in a replay; what came before it is done
    ├── HandlerTimeout                the handler ran longer than its policy allows
    ├── UnknownEffect                 a call to the outside may have happened; policy or a person decides
    ├── SequenceGap                   a version before this one is missing
    ├── TopicChanged                  a partition is not the one its watermark was made for
    ├── HandlerExit                   the handler called sys.exit()
    ├── ProcessDied                   recorded for an attempt whose process was killed
    └── Signal                        what a handler raises to decide its message's fate
        ├── Retry                     try again (after …)
        ├── Dead                      never by itself again; kept for a person
        └── Discard                   decided: drop it, keep the reason

Errors carry consumer and message id where they know them, and never a payload.
"""

from __future__ import annotations

from datetime import timedelta


class OnceboxError(Exception):
    """The root of everything oncebox raises.

    `retryable` says whether running the same thing again may succeed.
    """

    retryable = True


class UsageError(OnceboxError):
    """The call is wrong and will stay wrong until the code or the configuration changes."""

    retryable = False


class ConfigError(UsageError):
    """Policy, TOML, environment or a start-up check says no; the text names both sides."""


class HandlerError(UsageError):
    """A handler can't be registered; the text names the handler and its parameter."""


class MessageError(UsageError):
    """An id, type, header or body that oncebox does not take."""


class TooLarge(MessageError):
    """Over a limit; the text names the limit and the size."""


class UndecodablePayload(UsageError):
    """The body does not decode to what the handler annotates; the message goes to `dead`."""


class UnknownHandle(UsageError, TypeError):
    """The guard was given something that is not a known database handle."""


class AutocommitHandle(UsageError):
    """The handle commits every statement by itself, so there is no transaction to join."""


class ClaimError(OnceboxError):
    """The guard found a mistake that would lose or double a message."""


class AlreadyClaimed(ClaimError):
    """This transaction already holds the key: two layers claim the same message."""

    retryable = False


class ClaimUnread(ClaimError):
    """A guarded block ended without looking at its claim."""

    retryable = False


class PayloadConflict(ClaimError):
    """The id is known with another payload or type; neither is dropped silently."""

    retryable = False


class UnfinishedClaim(ClaimError):
    """An earlier block raised and its transaction was committed anyway: half an effect may exist."""

    retryable = False


class ClaimLost(ClaimError):
    """A race left no answer about the key; the transaction must be tried again."""


class TransactionError(OnceboxError):
    """The transaction that carries the claim is no longer usable."""


class TransactionEnded(TransactionError):
    """The handler committed or rolled back a transaction that is not its own."""

    retryable = False


class TransactionAborted(TransactionError):
    """A database error was swallowed inside the transaction; the server will not commit it."""


class SchemaError(UsageError):
    """The tables are not what this version of oncebox works with."""


class SchemaMissing(SchemaError):
    """No oncebox tables in this database."""


class SchemaOutdated(SchemaError):
    """The tables are older or newer than this version of oncebox."""


class DatabaseError(OnceboxError):
    """A driver's error, translated; the driver's own is the cause."""


class DatabaseUnavailable(DatabaseError):
    """The database can't be reached or the connection was lost; nothing is charged."""


class CommitUnknown(DatabaseUnavailable):
    """The connection was lost during COMMIT: it may have happened. Never ack on this."""


class Conflict(DatabaseError):
    """Deadlock or serialization failure: the whole transaction runs again, uncharged."""


class LockBusy(DatabaseError):
    """A lock was not granted within its timeout."""


class BrokerError(OnceboxError):
    """A broker's client failed, translated; its own error is the cause."""


class BrokerUnavailable(BrokerError):
    """The broker can't be reached, the connection was lost, or it is closed; nothing is charged."""


class QueueFull(BrokerError):
    """A bounded queue takes no more for now; the message was not taken."""


class ArchiveError(OnceboxError):
    """An archive can't be written or read, or a part of it is not what was written. Nothing was deleted."""


class StoreError(OnceboxError):
    """A payload is not in its store as it was put there; the text names where it should be."""


class LeaseLost(OnceboxError):
    """The lease ran out and another worker holds the message; this one's effects are rolled back."""


class ReplayFailed(OnceboxError):
    """A handler failed in a replay, which stands right before that message; the same command goes on."""


class HandlerTimeout(OnceboxError):
    """The handler ran past its policy's timeout; its effects are rolled back."""


class HandlerExit(OnceboxError):
    """The handler called sys.exit(), or let out what is no Exception; its effects are rolled back and it counts
    as a failure."""


class UnknownEffect(OnceboxError):
    """A call to the outside world was begun and its end is not known. An effect's handler raises it, too,
    to say that it can't tell; a timeout or a lost connection says the same."""


class SequenceGap(OnceboxError):
    """Recorded for a message that waited too long for the versions before it. `dead: gap`."""


class TopicChanged(OnceboxError):
    """A partition can't be the one its watermark was made for; nothing of it is handled until somebody has decided."""


class ProcessDied(OnceboxError):
    """Never raised: the name under which a killed process is recorded as an attempt."""


class Signal(OnceboxError):
    """What a handler raises to decide its message's fate."""


class Retry(Signal):
    """Try this message again; `after` overrides the policy's delay. Counts as an attempt."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class Dead(Signal):
    """Do not try this message again by itself; keep it, visible, with this reason."""

    retryable = False

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Discard(Signal):
    """Drop this message on purpose: effects rolled back, the ledger keeps the reason, acked."""

    retryable = False

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
