"""Private real servers for tests: own folder, random loopback port, killable and restartable."""

from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.process import Unavailable
from tests.servers.proxy import Proxy

__all__ = ["PgBouncer", "Postgres", "Proxy", "Unavailable"]
