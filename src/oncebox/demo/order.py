"""What a worker is told, and the words between it and its parent."""

from __future__ import annotations

from typing import Literal

import msgspec

from oncebox.demo.place import Place

QUEUE = "payments"
READY = b"ready"
STOP_SECONDS = 10.0
"""How long a worker may take to stop before it is killed, or ends itself when its parent is gone."""

Side = Literal["unprotected", "oncebox"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told: which handler, where its messages come from, where its charges go."""

    side: Side
    address: str
    place: Place
    config: str
    """An empty policy file: an `oncebox.toml` in the user's folder is about the user's app."""
    ack_first: bool = False
