"""The guard's errors, each with the message it concerns and the next step to take; never a payload."""

from __future__ import annotations

from oncebox import errors
from oncebox.message import MessageKey


def named(key: MessageKey) -> str:
    """The message, for people."""
    source = f" from {key.source!r}" if key.source else ""
    return f"message {key.id!r}{source} (consumer {key.consumer!r})"


def ended(key: MessageKey) -> errors.TransactionEnded:
    """The transaction that took the claim is over before its block is."""
    return errors.TransactionEnded(
        f"the transaction was committed or rolled back inside the block of {named(key)}, by the block or by "
        "the database itself, so claim and effect can part; end it after the block"
    )


def aborted(key: MessageKey) -> errors.TransactionAborted:
    """The transaction can't be committed, and nobody has said so yet."""
    return errors.TransactionAborted(
        f"a database error was swallowed in the block of {named(key)}, so this transaction will be rolled "
        "back whatever its commit says; let the error out, or wrap the failing statement in a savepoint"
    )


def unread(key: MessageKey) -> errors.ClaimUnread:
    """The block never asked whether it is the first."""
    return errors.ClaimUnread(
        f"the block of {named(key)} ended without looking at its claim, so a duplicate would have run it "
        "too; write: if claim.first: ..."
    )


def too_late(key: MessageKey) -> str:
    """A note for an error that was raised after the transaction had ended."""
    return (
        f"oncebox: the transaction that claimed {named(key)} had ended before this was raised; if it was "
        "committed, the message counts as done although its block failed"
    )


def lost(key: MessageKey) -> errors.ClaimLost:
    """Neither inserted nor found."""
    return errors.ClaimLost(
        f"{named(key)} was claimed or removed by someone else at the same moment and the database gave no "
        "answer; roll back and try again"
    )


def already(key: MessageKey) -> errors.AlreadyClaimed:
    """Found, and put there by this very transaction."""
    return errors.AlreadyClaimed(
        f"{named(key)} is already claimed in this transaction, so this claim would skip the effect as a "
        "duplicate's; claim in one place, the middleware or the handler"
    )


def conflict(key: MessageKey, what: str) -> errors.PayloadConflict:
    """Found with another `what` (type or payload)."""
    return errors.PayloadConflict(
        f"{named(key)} is known with another {what}: two messages share an id; set this one aside and look "
        "at its producer, or tell producers apart with source="
    )


def unfinished(key: MessageKey) -> errors.UnfinishedClaim:
    """Found, with the mark of a block that raised."""
    return errors.UnfinishedClaim(
        f"an earlier block of {named(key)} raised and its transaction was committed all the same, so half an "
        "effect may exist; look at what it wrote, then call inbox.resolve(handle, message_id, done=True) to "
        "count it as done, or done=False to let it run again"
    )


def settled(key: MessageKey) -> errors.UsageError:
    """Asked to resolve what is not unfinished."""
    return errors.UsageError(f"{named(key)} is not unfinished, so there is nothing to resolve")
