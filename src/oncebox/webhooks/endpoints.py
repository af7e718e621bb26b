"""The endpoints, and the life of a request: bounded, read, verified, identified, committed, answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from oncebox.app import DATABASE_VARIABLE, App
from oncebox.brokers.contract import Delivery
from oncebox.consumer import Consumer
from oncebox.core.outcomes import Reason
from oncebox.core.work import Item
from oncebox.errors import ConfigError, DatabaseUnavailable, OnceboxError
from oncebox.identity import Identity, Resolver
from oncebox.runtime.feed import report
from oncebox.runtime.http import Receive, Scope, Send, lifespan, nothing_here
from oncebox.runtime.sessions import POOL_MAX
from oncebox.webhooks.answers import Answer, Refusal, answer_many, answer_one, retry_after
from oncebox.webhooks.asgi import CLOSE, Gone, kept, needed, read_body, read_headers, respond, route
from oncebox.webhooks.requests import Verified, read_deliveries, resolve
from oncebox.webhooks.signatures import Unverified, Verifier

log = logging.getLogger("oncebox")

BODY_BYTES_MAX = 1024 * 1024
IN_HAND_MAX = 64
"""Requests that are read and worked on at a time; more are told to come back."""
DATABASE_RETRY_SECONDS = 5
BUSY_RETRY_SECONDS = 1


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A path, who may send to it, and the consumer that gets what they send."""

    consumer: Consumer
    verify: Verifier
    identity: Identity
    body_bytes_max: int


class Webhooks:
    """An ASGI application of webhook endpoints for consumers of one app.

    `prefix` is where `oncebox run --http` serves it. `in_hand_max` bounds the requests worked on at a time;
    more get 429. Opens nothing when made.
    """

    def __init__(self, app: App, *, prefix: str = "", in_hand_max: int = IN_HAND_MAX) -> None:
        if in_hand_max < 1:
            raise ConfigError(f"in_hand_max={in_hand_max}: at least 1")
        self.app = app
        self._endpoints: dict[str, Endpoint] = {}
        self._in_hand = 0
        self._in_hand_max = in_hand_max
        self._threads: ThreadPoolExecutor | None = None
        self._refused = 0
        self._lost = 0
        app.http.add(prefix, self)

    def add(
        self,
        path: str,
        consumer: Consumer,
        *,
        verify: Verifier,
        identity: Identity | None = None,
        source: str | Resolver | None = None,
        type: str | Resolver | None = None,  # noqa: A002 - the domain's word
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """Have what is posted to `path`, and verified, go to `consumer`, in its mode.

        Id and type are where the sender's scheme has them, unless `identity` says otherwise; `source`
        and `type` name just these. ConfigError for a path that is taken, and for an app without a database.
        """
        if not path.startswith("/"):
            raise ConfigError(f"path {path!r}: it starts with a slash, as in '/stripe'")
        if path in self._endpoints:
            raise ConfigError(f"path {path!r} has an endpoint already")
        if consumer.app is not self.app:
            raise ConfigError(f"consumer {consumer.name!r} belongs to another app")
        if not callable(getattr(verify, "check", None)):
            raise ConfigError(
                f"verify={verify!r}: it is standard(…), stripe(…), github(…), token(…) or your own"
            )
        if consumer.policy.order_by is not None and consumer.policy.mode == "inline":
            raise ConfigError(
                f'consumer {consumer.name!r}: requests come side by side, so order_by needs mode="stored" here'
            )
        if body_bytes_max < 1:
            raise ConfigError(f"body_bytes_max={body_bytes_max}: at least 1")
        if not self.app.names_database:
            raise ConfigError(
                f"consumer {consumer.name!r} has a webhook, but the app names no database: "
                f"App('postgresql://…') or {DATABASE_VARIABLE}"
            )
        self._endpoints[path] = Endpoint(
            consumer=consumer,
            verify=verify,
            identity=_identity(identity or verify.identity, identity is not None, source, type),
            body_bytes_max=body_bytes_max,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] != "http" or (endpoint := self._endpoints.get(route(scope))) is None:
            await nothing_here(scope, send)
        else:
            try:
                answer = await self._answer(endpoint, scope, receive)
            except Gone:
                return
            await respond(send, answer)

    async def _answer(self, endpoint: Endpoint, scope: Scope, receive: Receive) -> Answer:
        """A request to its answer. Only cancellation and a sender that has gone get out of here."""
        if scope["method"] != "POST":
            return Refusal(405, "webhooks are posted", ("allow", "POST"), CLOSE).answer
        if self._in_hand >= self._in_hand_max:
            return Refusal(429, "too many at a time", retry_after(BUSY_RETRY_SECONDS), CLOSE).answer
        self._in_hand += 1
        try:
            request = await self._verified(endpoint, scope, receive)
            deliveries, batch = read_deliveries(request)
            items = [_item(endpoint, request, delivery, batch) for delivery in deliveries]
            await self._take(endpoint.consumer, items)
        except Refusal as refusal:
            return refusal.answer
        except OnceboxError as error:
            return self._unavailable(endpoint, error)
        except Exception as error:
            # A handler's own errors are outcomes; this is something that nobody foresaw.
            log.error("webhook %s: unforeseen", scope["path"], exc_info=error)
            return Refusal(
                500, "it could not be taken; try again", retry_after(DATABASE_RETRY_SECONDS)
            ).answer
        finally:
            self._in_hand -= 1
        self._lost = 0
        # Only here is everything committed, or on record as refused.
        entries = [(item.message.id, item.outcome) for item in items if item.outcome is not None]
        return answer_many(entries) if batch else answer_one(*entries[0])

    async def _verified(self, endpoint: Endpoint, scope: Scope, receive: Receive) -> Verified:
        verify = endpoint.verify
        headers = read_headers(scope)
        given = needed(headers, verify.needs, verify.challenge)
        body = await read_body(headers, receive, endpoint.body_bytes_max)
        try:
            proof = verify.check(given, body, time.time())
        except Unverified as error:
            self._refused += 1
            # Anybody can send these: a few lines say it, a million would hide the rest.
            often = self._refused in (1, 10, 100) or self._refused % 1000 == 0
            level = logging.WARNING if often else logging.DEBUG
            log.log(level, "webhook %s: not verified: %s (%d so far)", scope["path"], error, self._refused)
            raise Refusal(401, "not verified", ("www-authenticate", verify.challenge)) from None
        return Verified(
            path=route(scope),
            headers=kept(headers, verify.needs),
            body=body,
            proof=proof,
            identity=endpoint.identity,
        )

    async def _take(self, consumer: Consumer, items: list[Item]) -> None:
        """Committed, or stored, when this returns."""
        registry = consumer.registry
        if consumer.policy.mode == "inline" and registry.all() and not registry.is_async:
            await self._in_thread(lambda: consumer.take_sync(items))
        else:
            await consumer.take(items)
        for item in items:
            assert item.outcome is not None
            report(consumer.name, item, item.outcome)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(POOL_MAX, thread_name_prefix="oncebox-webhook")
        await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _unavailable(self, endpoint: Endpoint, error: OnceboxError) -> Answer:
        """Nothing is known to be committed: the sender keeps it, and the ledger tells when it comes again."""
        self._lost += 1
        level = logging.WARNING if self._lost in (1, 5) or self._lost % 30 == 0 else logging.DEBUG
        name = endpoint.consumer.name
        log.log(level, "consumer %s: a webhook was not taken: %s (%d in a row)", name, error, self._lost)
        away = isinstance(error, DatabaseUnavailable)
        seconds = DATABASE_RETRY_SECONDS if away else BUSY_RETRY_SECONDS
        return Refusal(503, "it could not be taken; try again", retry_after(seconds)).answer


def _identity(
    identity: Identity, named: bool, source: str | Resolver | None, kind: str | Resolver | None
) -> Identity:
    """The sender's identity with the endpoint's words; a word that `identity=` says too is an error."""
    words: dict[str, Any] = {}
    for word, value, said in (("source", source, identity.source), ("type", kind, identity.type)):
        if value is None:
            continue
        if named and said:
            raise ConfigError(
                f"the {word} is named twice: {word}={value!r}, and by the identity; keep one of them"
            )
        words[word] = value
    return msgspec.structs.replace(identity, **words) if words else identity


def _item(endpoint: Endpoint, request: Verified, delivery: Delivery, batch: bool) -> Item:
    """The delivery as an item of the consumer. What nobody can handle is one too, for the dead; but a body
    that is too large is its sender's, unless its neighbours in a batch would suffer for it."""
    item = endpoint.consumer.intake.from_resolved(delivery, resolve(request, delivery))
    if item.refusal is not None and item.refusal[0] is Reason.TOO_LARGE and not batch:
        raise Refusal(413, f"over the limit of {endpoint.consumer.policy.payload_bytes_max:,} bytes")
    return item
