"""The app: consumers on one database. Opens nothing when made."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from oncebox import config as _config
from oncebox import errors
from oncebox.brokers.contract import Sink, Source
from oncebox.consumer import Consumer
from oncebox.core.alone import Alone
from oncebox.core.outgoing import Outlets, Placing
from oncebox.core.steps import Call
from oncebox.core.tracing import Tracing
from oncebox.drivers.database import Database
from oncebox.drivers.session import Settings
from oncebox.identity import Identity
from oncebox.policy import Policy, policy_words
from oncebox.runtime.handles import HandleKind
from oncebox.runtime.http import Mounts
from oncebox.runtime.keeper import new_worker_id
from oncebox.runtime.members import connection_settings
from oncebox.runtime.relay import routes
from oncebox.runtime.running import PARTS, Running
from oncebox.runtime.schema import check_schema, check_schema_async
from oncebox.runtime.sessions import AsyncConnections, AsyncSideChannel, Connections, SideChannel
from oncebox.runtime.sweeper import check_archive, check_window
from oncebox.runtime.tallies import Tallies
from oncebox.runtime.watchdog import Watchdog
from oncebox.stores import Store

DEFAULT_DATABASE = "sqlite:///oncebox.db"
DATABASE_VARIABLE = "ONCEBOX_DATABASE_URL"


class App:
    """Consumers that share a database, and what runs them.

    `database` is a URL (`postgresql://`, `postgresql+asyncpg://`, `sqlite:///file`) or a SQLAlchemy
    sessionmaker; without one, ONCEBOX_DATABASE_URL, and with nothing but in-process sources a SQLite
    file. `config` is a TOML file with policy per consumer; by default `oncebox.toml` where there is
    one. `sink` is where `tx.publish` goes: one for everything, or a mapping from type patterns
    (`"payment.*"`) to sinks, the first match wins. `source` is what publications name as theirs.
    `store` keeps payloads that are over `claim_check_bytes`. ConfigError names what is wrong.
    """

    def __init__(
        self,
        database: Any = None,
        *,
        schema: str | None = None,
        config: str | Path | None = None,
        sink: Sink | Mapping[str, Sink] | None = None,
        source: str = "",
        keep_published: timedelta | float = 0.0,
        store: Store | None = None,
        heartbeat_seconds: float = 2.0,
        lapse_seconds: float = 10.0,
        drain_seconds: float = 30.0,
    ) -> None:
        self._config = _config.load(config)
        self._database = _database(database, schema or self._config.schema)
        self.schema = schema or self._config.schema
        self.sinks = routes(sink)
        self.source = source
        self.keep_published_seconds = (
            keep_published.total_seconds() if isinstance(keep_published, timedelta) else float(keep_published)
        )
        self.store = store
        self.heartbeat_seconds = heartbeat_seconds
        self.lapse_seconds = lapse_seconds
        self.alone = Alone()
        self.drain_seconds = drain_seconds
        self.consumers: dict[str, Consumer] = {}
        self.http = Mounts()
        """What `oncebox run --http` serves."""
        self.worker = new_worker_id()
        self.watchdog = Watchdog()
        self.tallies = Tallies()
        self.tracing: Tracing | None = None
        """Set by an integration; read when something starts."""
        self._sync: _SyncState | None = None
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncState] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def consumer(
        self, name: str, source: Source | None = None, *, identity: Identity | None = None, **policy: Any
    ) -> Consumer:
        """A new consumer. `policy` are words of `Policy`; ConfigError when a word is unknown, or said in
        the TOML file too, or when the name is taken."""
        if name in self.consumers:
            raise errors.ConfigError(f"consumer {name!r} exists already; one name, one consumer")
        consumer = Consumer(self, name, source, identity, policy)
        self.consumers[name] = consumer
        return consumer

    def policy_of(self, name: str, words: dict[str, Any]) -> Policy:
        """The consumer's policy from code and file; a word set in both is an error naming both."""
        said = policy_words(words, f"consumer {name!r} in code")
        filed = self._config.words(name)
        for word in sorted(said.keys() & filed.keys()):
            raise errors.ConfigError(
                f"consumer {name!r}: {word} is set in code ({said[word]!r}) and in {self._config.where(name, word)} "
                f"({filed[word]!r}); keep one of them"
            )
        try:
            return Policy(**said, **filed)
        except errors.ConfigError as error:
            raise errors.ConfigError(f"consumer {name!r}: {error}") from None

    @property
    def names_database(self) -> bool:
        """Whether a database was named, here or by ONCEBOX_DATABASE_URL."""
        return self._database is not None

    @property
    def database(self) -> Database:
        """Where the tables are. ConfigError when nothing names a database and a real source needs one."""
        if self._database is None:
            real = [
                c.name for c in self.consumers.values() if c.source is not None and not c.source.in_process
            ]
            if real:
                raise errors.ConfigError(
                    f"consumer {real[0]!r} has a real source, but the app names no database: "
                    f"App('postgresql://…') or {DATABASE_VARIABLE} (a silent SQLite file in each container would "
                    "be a ledger in each container)"
                )
            self._database = Database(DEFAULT_DATABASE, schema=self.schema)
        return self._database

    def handle_kinds(self) -> frozenset[HandleKind]:
        """Which connections handlers may ask for."""
        database = self._database or Database(DEFAULT_DATABASE, schema=self.schema)
        return cast("frozenset[HandleKind]", database.handle_kinds())

    def handled_types(self) -> dict[str, list[str] | None]:
        """By consumer, the types its handlers name; None where one takes everything, or none is here."""
        registries = {name: consumer.registry for name, consumer in self.consumers.items()}
        return {
            name: None if registry.takes_all or not registry.all() else registry.names()
            for name, registry in registries.items()
        }

    def outlets(self, consumer: str) -> Outlets:
        """Where a consumer's handlers may send to."""
        stored = frozenset(c.name for c in self.consumers.values() if c.policy.mode == "stored")
        placings = {
            c.name: Placing(c.policy, c.intake.place)
            for c in self.consumers.values()
            if c.policy.mode == "stored" and (c.policy.order_by is not None or c.policy.fingerprint != "raw")
        }
        return Outlets(
            source=self.source or consumer,
            has_sink=bool(self.sinks),
            consumers=stored,
            placings=placings,
            tracing=self.tracing,
        )

    def load(self, reference: str) -> bytes:
        """A payload from the store."""
        if self.store is None:
            raise errors.ConfigError(
                "a message keeps its payload in a store, and this app has none: App(store=…)"
            )
        return self.store.get(reference)

    @asynccontextmanager
    async def running(
        self, *, only: tuple[str, ...] = PARTS, worker: str | None = None
    ) -> AsyncIterator[Running]:
        """Run sources, workers and maintenance for the length of the block; drains at its end.

        Fits a FastAPI lifespan. `worker` is this process's name where a parent chose one. Raises
        SchemaMissing or SchemaOutdated with the command to run, and ConfigError for what can't work,
        before anything is received.
        """
        await check_schema_async(self.database)
        self._check()
        running = Running(
            self.database,
            self.consumers.values(),
            only=only,
            beat_seconds=self.heartbeat_seconds,
            lapse_seconds=self.lapse_seconds,
            drain_seconds=self.drain_seconds,
            load=self.load,
            worker=worker,
            sinks=self.sinks,
            keep_published_seconds=self.keep_published_seconds,
            meter=self.tallies.meter,
        )
        await running.start()
        try:
            yield running
        finally:
            await asyncio.shield(running.stop())

    def _check(self) -> None:
        """What can be known to be wrong before the first message."""
        for unknown in sorted(self._config.consumers() - self.consumers.keys()):
            raise errors.ConfigError(
                f"{self._config.where(unknown)} sets policy for consumer {unknown!r}, which this app does not have; "
                f"it has: {', '.join(sorted(self.consumers)) or 'none'}"
            )
        for consumer in self.consumers.values():
            if (
                consumer.source is not None
                and consumer.policy.mode == "inline"
                and not consumer.registry.all()
            ):
                raise errors.ConfigError(f"consumer {consumer.name!r} has a source but no handler")
            if consumer.registry.all() and not consumer.registry.is_async and not self.database.serves_sync:
                raise errors.ConfigError(
                    f"consumer {consumer.name!r} has plain def handlers, which {self.database.driver} can't serve "
                    "here; use async def, or a blocking driver such as postgresql://"
                )
            self._check_order(consumer)
            check_window(consumer)
            check_archive(consumer)

    def _check_order(self, consumer: Consumer) -> None:
        """A lock excludes, it does not order: inline, only a source that pins keys can keep their order."""
        policy, source = consumer.policy, consumer.source
        if policy.order_by is None or policy.mode == "stored" or source is None or source.pins_keys:
            return
        raise errors.ConfigError(
            f'consumer {consumer.name!r}: order_by={policy.order_by!r} with mode="inline" needs a source that gives '
            f'all messages of a key to one consumer at a time, and {source.name} does not; use mode="stored"'
        )

    @property
    def sync_state(self) -> _SyncState:
        """Blocking connections for single calls."""
        with self._lock:
            if self._sync is None:
                self._sync = _SyncState(self)
            return self._sync

    @property
    def async_state(self) -> _AsyncState:
        """Async connections for single calls, of the running loop."""
        return self._async.setdefault(asyncio.get_running_loop(), _AsyncState(self))

    def close(self) -> None:
        """Close the blocking connections that `process_sync` opened."""
        with self._lock:
            state, self._sync = self._sync, None
        if state is not None:
            state.close()

    async def aclose(self) -> None:
        """Close the connections that `process` opened on this loop, and the blocking ones."""
        state = self._async.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.close()
        self.close()


def _database(given: Any, schema: str) -> Database | None:
    if isinstance(given, Database):
        return given
    if given is None:
        url = os.environ.get(DATABASE_VARIABLE)
        return Database(url, schema=schema) if url else None
    if isinstance(given, str):
        return Database(given, schema=schema)
    from oncebox.drivers.sqlalchemy import SqlAlchemyDatabase

    return SqlAlchemyDatabase(given, schema=schema)


class _SyncState:
    def __init__(self, app: App) -> None:
        self._app = app
        self.side = SideChannel(app.database, Settings(side=True))
        self._pools: dict[Settings, Connections] = {}
        self._lock = threading.Lock()

    def sessions(self, policy: Policy) -> Connections:
        settings = connection_settings(policy)
        with self._lock:
            if not self._pools:
                check_schema(self._app.database)
            if settings not in self._pools:
                self._pools[settings] = Connections(self._app.database, settings)
            return self._pools[settings]

    def write_counts(self) -> None:
        """Best effort: the outcomes that were counted are committed, and must not look like failures."""
        with suppress(errors.DatabaseError):
            if call := _counts(self._app):
                self.side(call)

    def close(self) -> None:
        self.write_counts()
        for pool in self._pools.values():
            pool.close()
        self.side.close()


class _AsyncState:
    def __init__(self, app: App) -> None:
        self._app = app
        self.side = AsyncSideChannel(app.database, Settings(side=True))
        self._pools: dict[Settings, AsyncConnections] = {}
        self._checking = asyncio.Lock()

    async def sessions(self, policy: Policy) -> AsyncConnections:
        settings = connection_settings(policy)
        async with self._checking:
            if not self._pools:
                await check_schema_async(self._app.database)
            if settings not in self._pools:
                self._pools[settings] = AsyncConnections(self._app.database, settings)
        return self._pools[settings]

    async def write_counts(self) -> None:
        """As the blocking one."""
        with suppress(errors.DatabaseError):
            if call := _counts(self._app):
                await self.side(call)

    async def close(self) -> None:
        await self.write_counts()
        for pool in self._pools.values():
            await pool.close()
        await self.side.close()


def _counts(app: App) -> Call | None:
    rows = app.tallies.drain()
    return Call(app.database.queries.tally, {"rows": rows}) if rows else None
