"""Redis Streams: consumer groups as sources, streams as sinks (extra `oncebox[redis]`).

`docs/how-to/brokers/redis.md` shows the use.
"""

try:
    import redis.asyncio  # noqa: F401 - only to say early, and in plain words, that it is missing
except ImportError as error:  # pragma: no cover
    raise ImportError("oncebox.brokers.redis needs redis-py: pip install 'oncebox[redis]'") from error

from oncebox.brokers.redis.broker import Redis
from oncebox.brokers.redis.sink import RedisTopic
from oncebox.brokers.redis.source import RedisSource

__all__ = ["Redis", "RedisSource", "RedisTopic"]
