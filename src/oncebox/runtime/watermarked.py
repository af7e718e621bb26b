"""What can't go together with duplicates that are told by watermark, said when the consumer is made."""

from __future__ import annotations

from typing import Any

from oncebox.brokers.contract import Source
from oncebox.errors import ConfigError
from oncebox.identity import Identity
from oncebox.policy import Policy

_REFUSED: dict[str, tuple[Any, str]] = {
    "mode": ("inline", "a message that is stored has its row in the ledger anyway"),
    "durability": ("each", "a mark is vouched for by no ledger row; batch=100 shares a commit too"),
    "observe": (False, "what is told by its place can't be told twice"),
    "order_by": (None, "a partition is handled in order already, and what fails is retried out of it"),
    "keep_payload": ("until_done", "what is kept for replays belongs to a ledger row, and there is none"),
    "replay": (
        "forbid",
        "the log keeps its messages: have the group read it again under another consumer's name",
    ),
    "archive": (None, "what is archived are rows of the ledger, and there are none but for what failed"),
}


def check_watermarked(name: str, policy: Policy, source: Source | None, identity: Identity | None) -> None:
    """ConfigError for a word of policy that needs the ledger, at a consumer that does without it."""
    if not getattr(source, "watermarked", False):
        return
    for word, (fine, why) in _REFUSED.items():
        said = getattr(policy, word)
        if said != fine:
            raise ConfigError(
                f'consumer {name!r}: {word}={said!r} can\'t go with deduplicate="watermark": {why}'
            )
    if identity is not None:
        raise ConfigError(
            f'consumer {name!r}: deduplicate="watermark" tells messages by their place; name their type and source '
            "where the topics are named, and not here"
        )
