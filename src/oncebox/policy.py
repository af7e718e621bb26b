"""What a consumer does with its messages: words of policy, checked when they are said."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, get_args

import msgspec

from oncebox.errors import ConfigError
from oncebox.message import PAYLOAD_BYTES_MAX

Mode = Literal["inline", "stored"]
Durability = Literal["each", "group"]
Fingerprint = Literal["raw", "canonical"]
OrderBy = Literal["key", "sequence"]
OnDead = Literal["block", "skip"]
KeepPayload = Literal["until_done", "always", "never"]
Replay = Literal["rebuild", "suppress_effects", "forbid"]
OutsideWindow = Literal["by_id", "by_time", "run"]
OnGap = Literal["park", "skip", "proceed"]


def _check_whole(word: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{word}={value!r}: it is a whole number")


def _check_number(word: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        unit = " of seconds, or a timedelta" if word.endswith("_seconds") else ""
        raise ConfigError(f"{word}={value!r}: it is a number{unit}")


class Backoff(msgspec.Struct, frozen=True):
    """Exponential backoff with full jitter: a random delay up to `base * factor ** (attempt - 1)`.

    `attempts` is the budget: after that many failures a message is dead, reason `exhausted`.
    """

    attempts: int = 8
    base_seconds: float = 0.5
    factor: float = 2.0
    max_seconds: float = 300.0

    def __post_init__(self) -> None:
        _check_whole("Backoff: attempts", self.attempts)
        for word in ("base_seconds", "factor", "max_seconds"):
            _check_number(f"Backoff: {word}", getattr(self, word))
        if self.attempts < 1:
            raise ConfigError(f"Backoff(attempts={self.attempts}): at least 1 attempt is needed")
        if self.base_seconds < 0 or self.max_seconds < 0 or self.factor < 1:
            raise ConfigError("Backoff: base_seconds and max_seconds are not negative, factor is at least 1")

    def ceiling_seconds(self, attempt: int) -> float:
        """The longest delay before the attempt after `attempt`."""
        return min(self.max_seconds, self.base_seconds * self.factor ** min(attempt - 1, 63))

    def delay_seconds(self, attempt: int, jitter: random.Random | None = None) -> float:
        """A delay drawn uniformly between nothing and the ceiling, so that failures spread out."""
        draw = (jitter or random).uniform(0.0, 1.0)
        return draw * self.ceiling_seconds(attempt)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer's policy. `ConfigError` names the word and what it may be."""

    mode: Mode = "inline"
    durability: Durability = "each"
    batch: int = 1
    """Messages per transaction: what is already there, up to this many; no added wait."""
    concurrency: int = 0
    """Workers in one process; 0 picks 4 on PostgreSQL and 1 on SQLite, which has one writer."""
    retry: Backoff = Backoff()
    terminal: tuple[type[BaseException], ...] = ()
    """Exception types that are not worth another attempt."""
    crash_limit: int = 4
    """Process deaths in a message's handler before it is `dead: crash loop`."""
    timeout_seconds: float = 30.0
    lease_seconds: float = 60.0
    """How long a handler marked `long` may go without a heartbeat before others may take over."""
    lock_timeout_seconds: float = 10.0
    batch_seconds: float = 5.0
    """A batch that has run this long commits what is done and leaves the rest for the next."""
    unknown_type_seconds: float = 900.0
    """How long a stored message of a type nobody here handles waits for a newer deployment."""
    fingerprint: Fingerprint = "raw"
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    claim_check_bytes: int = 0
    """Payloads larger than this go to the app's store, and only a reference is queued; 0: never."""
    keep_payload: KeepPayload = "until_done"
    """What is kept of a message's payload: until it is done; beside the ledger, for replays; or nothing, ever."""
    replay: Replay = "forbid"
    """What `oncebox replay` may do: run handlers again with all that they write and send (`rebuild`), without
    what they send and call (`suppress_effects`), or not at all."""
    observe: bool = False
    """Count duplicates and conflicts, and suppress none of them: the handler runs. For adoption."""
    retention_seconds: float | None = None
    outside_window: OutsideWindow = "by_id"
    """Messages that were made before the window, when the ledger may have forgotten them: dead, where their id says
    when that was (`by_id`), or their event's time too (`by_time`); or run all the same."""
    archive: str | None = None
    """Where rows go before retention deletes them: a folder, or a URL such as `s3://bucket/prefix`."""
    order_by: OrderBy | None = None
    """One message of a key at a time, in arrival order (`key`) or by the version it carries (`sequence`)."""
    key: str | Callable[..., Any] | None = None
    """Where the key is: a payload member, `header:name`, a function of the message; None: the broker's."""
    sequence: str | Callable[..., Any] | None = None
    """Where the version is, as for `key`."""
    sequence_start: int | Literal["learn"] | None = None
    """A key's first version, or `learn`: whichever arrives first."""
    on_dead: OnDead = "block"
    """What a message that ends `dead` does to its key: blocks it until somebody has dealt with it, or not."""
    gap_seconds: float = 300.0
    """How long a key waits for a missing version."""
    on_gap: OnGap = "park"
    """Then: what waits goes to `dead: gap`; or the missing are skipped (late ones are stale), or passed
    over for now (late ones are handled when they come)."""

    def __post_init__(self) -> None:
        for word, kind in (
            ("mode", Mode),
            ("durability", Durability),
            ("fingerprint", Fingerprint),
            ("keep_payload", KeepPayload),
            ("replay", Replay),
            ("order_by", OrderBy),
            ("outside_window", OutsideWindow),
            ("on_dead", OnDead),
            ("on_gap", OnGap),
        ):
            if word == "order_by" and self.order_by is None:
                continue
            if getattr(self, word) not in get_args(kind):
                choices = ", ".join(repr(choice) for choice in get_args(kind))
                raise ConfigError(f"{word}={getattr(self, word)!r}: it is one of {choices}")
        for word, least in _WHOLE.items():
            _check_whole(word, getattr(self, word))
            if getattr(self, word) < least:
                raise ConfigError(f"{word}={getattr(self, word)!r}: it is at least {least}")
        if self.batch > 10_000:
            raise ConfigError(f"batch={self.batch}: at most 10,000 (1,000 gains nothing over 100 for most)")
        for word in _SECONDS:
            if getattr(self, word) is None and word == "retention_seconds":
                continue
            _check_number(word, getattr(self, word))
            if getattr(self, word) < 0 or (word != "unknown_type_seconds" and getattr(self, word) == 0):
                raise ConfigError(f"{word}={getattr(self, word)!r}: it is more than 0")
        if not isinstance(self.retry, Backoff):
            raise ConfigError(f"retry={self.retry!r}: it is a Backoff, as in retry=Backoff(attempts=5)")
        # A list, or a single class: what anybody would write; only a tuple works in isinstance().
        given: Any = self.terminal
        kinds = tuple(given) if isinstance(given, (list, tuple, set, frozenset)) else (given,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"terminal={self.terminal!r}: it is a tuple of exception types")
        msgspec.structs.force_setattr(self, "terminal", kinds)
        if self.durability == "group" and self.mode != "inline":
            raise ConfigError(
                'durability="group" is for mode="inline": a stored message is acked when it is stored; '
                "use batch=100 to share its commits"
            )
        if self.durability == "group" and self.batch > 1:
            raise ConfigError('durability="group" and batch share the same flush: choose one of them')
        if self.keep_payload == "never" and (self.mode != "inline" or self.order_by is not None):
            raise ConfigError(
                'keep_payload="never" is for mode="inline" without order_by: what is stored, or waits for its turn, '
                "waits with its payload"
            )
        if self.keep_payload == "never" and self.claim_check_bytes:
            raise ConfigError(
                'claim_check_bytes keeps payloads in a store, and keep_payload="never" keeps none'
            )
        if self.archive is not None:
            place: Any = os.fspath(self.archive) if isinstance(self.archive, os.PathLike) else self.archive
            if not isinstance(place, str) or not place.strip():
                raise ConfigError(f"archive={place!r}: it is a folder, or a URL such as s3://bucket/prefix")
            msgspec.structs.force_setattr(self, "archive", place)
        self._check_observing()
        self._check_order()

    def _check_observing(self) -> None:
        if not isinstance(self.observe, bool):
            raise ConfigError(f"observe={self.observe!r}: it is True or False")
        if not self.observe:
            return
        for word, fine in (("mode", "inline"), ("durability", "each"), ("batch", 1), ("order_by", None)):
            said = getattr(self, word)
            if said != fine:
                raise ConfigError(
                    f"observe=True with {word}={said!r}: observing lets a delivery run as if oncebox were not there, "
                    'which only mode="inline" without batch, durability="group" and order_by can do'
                )

    def _check_order(self) -> None:
        if self.order_by is None:
            for word in ("key", "sequence", "sequence_start"):
                if getattr(self, word) is not None:
                    raise ConfigError(f'{word}={getattr(self, word)!r} needs order_by="key" or "sequence"')
            return
        for word in ("key", "sequence"):
            said = getattr(self, word)
            if said is not None and not (said and isinstance(said, str)) and not callable(said):
                raise ConfigError(
                    f'{word}={said!r}: it is a payload member ("case.id"), "header:name", or a function of the message'
                )
        if self.order_by == "key" and (self.sequence is not None or self.sequence_start is not None):
            raise ConfigError('sequence and sequence_start need order_by="sequence"')
        if self.order_by == "sequence":
            if self.sequence is None:
                raise ConfigError('order_by="sequence" needs sequence=…: where a message carries its version')
            start = self.sequence_start
            if start != "learn" and (not isinstance(start, int) or isinstance(start, bool)):
                raise ConfigError(
                    'order_by="sequence" needs sequence_start=…: the first version of a key (0, 1, …), or "learn" '
                    "to start each key with the version that arrives first"
                )
        if self.mode == "inline" and (self.durability == "group" or self.batch > 1):
            raise ConfigError(
                'order_by with mode="inline" is one message per transaction; for batches use mode="stored"'
            )


WORDS = frozenset(Policy.__struct_fields__)
_WHOLE = {"batch": 1, "concurrency": 0, "crash_limit": 1, "payload_bytes_max": 1, "claim_check_bytes": 0}
_SECONDS = tuple(word for word in Policy.__struct_fields__ if word.endswith("_seconds"))
_ALIASES = {
    "timeout": "timeout_seconds",
    "lease": "lease_seconds",
    "lock_timeout": "lock_timeout_seconds",
    "retention": "retention_seconds",
    "gap": "gap_seconds",
}


def policy_words(words: dict[str, Any], where: str) -> dict[str, Any]:
    """The words as `Policy` knows them: timedeltas to seconds, short names to long; ConfigError if unknown."""
    known: dict[str, Any] = {}
    for word, value in words.items():
        name = _ALIASES.get(word, word)
        if name not in WORDS:
            raise ConfigError(f"{where}: unknown policy word {word!r}; known: {', '.join(sorted(WORDS))}")
        known[name] = value.total_seconds() if isinstance(value, timedelta) else value
    return known
