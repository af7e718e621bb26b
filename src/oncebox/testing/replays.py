"""What a proof tries of replays: that the consumer's policy word `replay` holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncebox import errors
from oncebox.testing.steps import Steps
from oncebox.testing.story import tell

if TYPE_CHECKING:
    from oncebox.testing.prove import Proving

RECORDS = {"oncebox.replay", "oncebox.audit", "oncebox.kept"}
"""Tables of oncebox's that a replay itself writes to."""


def prove_replay(proving: Proving) -> None:
    """On the rows of a clean delivery, a replay as policy allows it. With effects suppressed nothing goes out,
    whatever it writes; a rebuild that begins with a reset leaves the rows as they were."""
    bench, consumer = proving.bench, proving.bench.consumer
    policy = consumer.policy.replay
    if policy == "forbid" or proving.wishes.status != "processed":
        return
    try:
        with proving.watch.living():
            bench.replay(proving.messages, Steps(watch=proving.watch))
    except errors.ReplayFailed as error:
        raise tell("replay", proving.who, str(error), ()) from error
    proving.proof.replayed = len(proving.messages)
    left = bench.tables.read()
    own = {name for name in left if name.startswith("oncebox.")}
    if policy == "suppress_effects":
        found = proving.comparison.differences(proving.again, left, without=set(left) - own | RECORDS)
        proving.judge("replay", "it is replayed", found)
    elif consumer.resetting is not None:
        found = proving.comparison.differences(proving.again, left, without=own)
        proving.judge("replay", "it is replayed after a reset", found)
    proving.recorded.new()
