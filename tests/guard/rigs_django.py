"""Rigs of Django's connection, inside atomic()."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy

from tests.guard.rigs import Desk, Rig

_aliases = itertools.count(1)

# The suite runs blocking handles inside an event loop, which Django would refuse.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)
    django.setup()


@contextmanager
def database(url: str) -> Iterator[str]:
    """An alias for a database that settings do not know."""
    alias = f"guard{next(_aliases)}"
    if url.startswith("postgresql://"):
        parts = urlsplit(url)
        words: dict[str, Any] = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.removeprefix("/"),
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
    else:
        words = {"ENGINE": "django.db.backends.sqlite3", "NAME": url}
    known = connections.settings
    known[alias] = connections.configure_settings({"default": {}, alias: words})[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del known[alias]


class DjangoRig(Rig):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Desk]:
        with database(self.url) as alias, transaction.atomic(using=alias):
            yield _desk(alias)

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Desk]:
        with database(self.url) as alias:
            yield _desk(alias)


def _desk(alias: str) -> Desk:
    def run(sql: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql)

    return Desk(ConnectionProxy(connections, alias), False, run, own_commit=False)


class DjangoSqlite(DjangoRig):
    name = "django sqlite"
    engine = "sqlite"


class DjangoPostgres(DjangoRig):
    name = "django postgresql"
    engine = "postgresql"


RIGS: list[type[Rig]] = [DjangoSqlite, DjangoPostgres]
