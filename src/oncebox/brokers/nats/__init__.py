"""NATS JetStream: pull consumers as sources, subjects as sinks. Needs `pip install 'oncebox[nats]'`."""

from oncebox.brokers.nats.broker import Nats
from oncebox.brokers.nats.sink import NatsSubject
from oncebox.brokers.nats.source import NatsSource

__all__ = ["Nats", "NatsSource", "NatsSubject"]
