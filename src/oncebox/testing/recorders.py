"""What test doubles have recorded: lists of mails, calls, anything that grows when something is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from oncebox.testing.noise import plain


class Recorded:
    """Looks at what each recorder has gained. A recorder is a list, or has one by the name of `calls`."""

    def __init__(self, recorders: Iterable[Any]) -> None:
        self._recorders = list(recorders)
        self._seen = [len(_entries(recorder)) for recorder in self._recorders]

    def new(self) -> Counter[str]:
        """What was recorded since the last look, and how often each. Calls that carry one idempotency key
        are one: the provider makes it so."""
        found: Counter[str] = Counter()
        keys = set()
        for place, recorder in enumerate(self._recorders):
            entries = _entries(recorder)
            for entry in entries[self._seen[place] :]:
                key = getattr(entry, "idempotency_key", None)
                if getattr(entry, "is_safe", False) or (key is not None and key in keys):
                    continue
                keys.add(key)
                found[str(plain(str(entry)))] += 1
            self._seen[place] = len(entries)
        return found


def _entries(recorder: Any) -> list[Any]:
    return list(getattr(recorder, "calls", recorder))
