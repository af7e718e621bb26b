"""The text a person sees when a handler can't be registered."""

import functools
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
import sqlalchemy.orm

from oncebox.core.work import Tx
from oncebox.errors import HandlerError
from oncebox.message import TYPE_BYTES_MAX, Message
from oncebox.runtime.handlers import HandleKind, compile_handler

if TYPE_CHECKING:
    from decimal import Decimal

CHOICES = (
    "a handler may annotate the payload (pydantic model, msgspec struct, dataclass, TypedDict, dict, list, "
    "str, bytes), Message, Tx; its connection is sqlite3.Connection"
)
UNIMPORTED = (
    "parameter 'order': its annotation can't be resolved (NameError: name 'Decimal' is not defined); handlers' "
    "annotations are read at run time, so import them at module level, not only under TYPE_CHECKING"
)
GENERATOR = "it is a generator (it has yield), so calling it would run nothing; use return"
SINGLE = "int is a single value, and a payload is a whole message"


@dataclass
class Order:
    id: int


@dataclass
class Held:
    connection: sqlite3.Cursor


class One(msgspec.Struct):
    id: int


class Two(msgspec.Struct):
    id: int


def refusal(function: Any, *database: HandleKind, types: Any = ("t",), batch: bool = False) -> str:
    with pytest.raises(HandlerError) as refused:
        compile_handler(
            function, types=types, batch=batch, long=False, database=frozenset(database or ("sqlite3",))
        )
    return str(refused.value)


def untyped(order) -> None: ...  # type: ignore[no-untyped-def]
def method(self, order: Order) -> None: ...  # type: ignore[no-untyped-def]
def unimported(order: "Decimal") -> None: ...
def misspelt(order: "Order[") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def two(order: Order, other: dict[str, Any]) -> None: ...
def two_tx(tx: Tx, other: Tx) -> None: ...
def two_handles(a: sqlite3.Connection, b: sqlite3.Connection) -> None: ...
def starred(*orders: Order) -> None: ...
def keywords(**orders: Order) -> None: ...
def single(order_id: int) -> None: ...
def cursor(order: Order, cursor: sqlite3.Cursor) -> None: ...
def held(order: Held) -> None: ...
def many(messages: list[Message]) -> None: ...
def behind(limit: int = 3, tx: Tx | None = None, /) -> None: ...
def generator(order: Order) -> Any:
    yield order


async def async_generator(order: Order) -> Any:
    yield order


@pytest.mark.parametrize(
    ("function", "name", "text"),
    [
        (untyped, "untyped", f"parameter 'order' has no annotation; {CHOICES}"),
        (functools.partial(untyped), "untyped", f"parameter 'order' has no annotation; {CHOICES}"),
        (
            method,
            "method",
            f"parameter 'self' has no annotation (a method is registered on an instance); {CHOICES}",
        ),
        (unimported, "unimported", UNIMPORTED),
        (two, "two", "parameters 'order' and 'other' both ask for the payload; keep one"),
        (two_tx, "two_tx", "parameters 'tx' and 'other' both ask for the Tx; keep one"),
        (
            two_handles,
            "two_handles",
            "parameters 'a' and 'b' both ask for the connection or session; keep one",
        ),
        (starred, "starred", "parameter '*orders' can't be served: name and annotate each parameter"),
        (keywords, "keywords", "parameter '**orders' can't be served: name and annotate each parameter"),
        (single, "single", f"parameter 'order_id' can't be served: {SINGLE}; {CHOICES}"),
        (cursor, "cursor", f"parameter 'cursor' can't be served: Cursor has no JSON form; {CHOICES}"),
        (held, "held", f"parameter 'order' can't be served: Cursor, in Held, has no JSON form; {CHOICES}"),
        (many, "many", "parameter 'messages': list[Message] is for a batch handler"),
        (
            behind,
            "behind",
            "parameter 'tx' is positional-only, behind one that keeps its default; swap the two",
        ),
        (generator, "generator", GENERATOR),
        (async_generator, "async_generator", GENERATOR),
        (Order, "Order", "a handler is a function, a bound method, or an object that can be called"),
        (7, "int", "a handler is a function, a bound method, or an object that can be called"),
        (dict.update, "dict.update", "its parameters can't be read; wrap it in a def with annotations"),
    ],
)
def test_what_can_not_be_served_is_refused_by_name(function: Any, name: str, text: str) -> None:
    assert refusal(function) == f"handler {name!r}: {text}"


def test_an_annotation_with_a_syntax_error_is_named() -> None:
    assert "parameter 'order': its annotation can't be resolved (SyntaxError" in refusal(misspelt)


def test_structs_that_can_not_be_told_apart_are_named() -> None:
    def either(order: One | Two) -> None: ...

    assert "parameter 'order' can't be served: " in refusal(either)
    assert "must be tagged" in refusal(either)


def test_a_handle_that_the_app_does_not_have_is_named_with_what_it_has() -> None:
    def sync(order: Order, conn: psycopg.Connection[Any]) -> None: ...
    async def waiting(order: Order, conn: psycopg.Connection[Any]) -> None: ...
    def session(session: sqlalchemy.orm.Session) -> None: ...

    assert refusal(sync) == (
        "handler 'sync': parameter 'conn': psycopg.Connection is not what this app's database has; "
        "its connection is sqlite3.Connection"
    )
    assert refusal(waiting, "psycopg", "psycopg-async") == (
        "handler 'waiting': parameter 'conn': psycopg.Connection can't be used in async def; "
        "its connection is psycopg.AsyncConnection"
    )
    assert refusal(sync, "asyncpg") == (
        "handler 'sync': parameter 'conn': psycopg.Connection is not what this app's database has; "
        "this app has no connection for a handler that is def"
    )
    assert refusal(session, "sqlalchemy-connection", "psycopg").endswith(
        "its connection is psycopg.Connection or sqlalchemy.Connection"
    )


def test_sqlite_serves_both_kinds_of_handler() -> None:
    async def waiting(order: Order, conn: sqlite3.Connection) -> None: ...

    compile_handler(waiting, types=(), batch=False, long=False, database=frozenset({"sqlite3"}))


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (("",), "a type can't be empty; without any type it takes every message"),
        (("a", "a"), "a type is named twice"),
        (("a\0",), "a message's type can't hold a NUL character"),
        ((7,), "a message's type is text, not int"),
        (("x" * (TYPE_BYTES_MAX + 1),), "a message's type is 256 bytes; the limit is 255"),
    ],
)
def test_types_that_no_message_can_have_are_refused(types: Any, text: str) -> None:
    def handle(order: Order) -> None: ...

    assert refusal(handle, types=types) == f"handler 'handle': {text}"


def test_a_lambda_needs_types_to_be_known_by() -> None:
    assert refusal(lambda: 1, types=()) == (
        "handler '<lambda>': a lambda has no name to find it by: name the types it takes, or use def"
    )


def test_a_batch_handler_needs_a_list() -> None:
    def none(tx: Tx) -> None: ...
    def one(order: Order) -> None: ...
    def message(message: Message) -> None: ...
    def untyped(orders) -> None: ...  # type: ignore[no-untyped-def]
    def wrong(orders: list[int]) -> None: ...

    assert refusal(none, batch=True) == (
        "handler 'none': a batch handler takes its messages as a list: annotate list[X] or list[Message]"
    )
    assert refusal(one, batch=True) == (
        "handler 'one': parameter 'order': a batch handler takes list[X] or list[Message], not Order"
    )
    assert refusal(message, batch=True).endswith("takes list[X] or list[Message], not Message")
    assert "a batch handler may annotate list[X] of the payload" in refusal(untyped, batch=True)
    assert "int is a single value" in refusal(wrong, batch=True)
