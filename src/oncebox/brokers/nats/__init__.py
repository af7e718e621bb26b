"""NATS JetStream: pull consumers as sources, subjects as sinks (extra `oncebox[nats]`).

`docs/how-to/brokers/nats.md` shows the use.
"""

try:
    import nats.js  # noqa: F401 - only to say early, and in plain words, that it is missing
except ImportError as error:  # pragma: no cover
    raise ImportError("oncebox.brokers.nats needs nats-py: pip install 'oncebox[nats]'") from error

from oncebox.brokers.nats.broker import Nats
from oncebox.brokers.nats.sink import NatsSubject
from oncebox.brokers.nats.source import NatsSource

__all__ = ["Nats", "NatsSource", "NatsSubject"]
