"""Redis Streams: consumer groups as sources, streams as sinks. Needs `pip install 'oncebox[redis]'`."""

from oncebox.brokers.redis.broker import Redis
from oncebox.brokers.redis.sink import RedisTopic
from oncebox.brokers.redis.source import RedisSource

__all__ = ["Redis", "RedisSource", "RedisTopic"]
