"""A handler gets what it annotates; what can't be served is refused at registration, by name."""

import asyncio
import functools
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypedDict

import asyncpg
import asyncpg.pool
import msgspec
import psycopg
import pydantic
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from oncebox.core.work import Tx
from oncebox.errors import HandlerError, UndecodablePayload
from oncebox.message import Message
from oncebox.runtime.handlers import HandleKind, Handler, compile_handler, handle_kind

MESSAGE = Message(id="m-1", type="order.paid", payload=b'{"id": 7}')
TX = Tx("billing", MESSAGE, 1)
CONNECTION = object()


@dataclass
class Order:
    id: int


class Struct(msgspec.Struct):
    id: int


class Row(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int


def plan(
    function: Callable[..., Any], *database: HandleKind, types: Sequence[str] = ("t",), batch: bool = False
) -> Handler:
    return compile_handler(
        function, types=tuple(types), batch=batch, long=False, database=frozenset(database or ("sqlite3",))
    )


def called(function: Callable[..., Any], *database: HandleKind) -> Any:
    handler = plan(function, *database)
    return handler.call(handler.decode(MESSAGE.payload), MESSAGE, TX, CONNECTION)


def test_every_annotation_gets_its_argument_in_any_order() -> None:
    def handle(tx: Tx, conn: sqlite3.Connection, message: Message, order: Order) -> object:
        return (tx, conn, message, order)

    assert called(handle) == (TX, CONNECTION, MESSAGE, Order(7))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(7)),
        (Struct, Struct(7)),
        (Row, {"id": 7}),
        (Model, Model(id=7)),
        (dict, {"id": 7}),
        (dict[str, int], {"id": 7}),
        (bytes, b'{"id": 7}'),
        (str, '{"id": 7}'),
        (Any, {"id": 7}),
        (object, {"id": 7}),
        (Order | None, Order(7)),
        (Optional[Model], Model(id=7)),  # noqa: UP045 - both spellings are in use
        (Annotated[Order, "note"], Order(7)),
        (dict | list, {"id": 7}),
    ],
)
def test_the_payload_comes_as_annotated(annotation: Any, value: Any) -> None:
    def handle(payload: Any) -> Any:
        return payload

    handle.__annotations__["payload"] = annotation
    assert called(handle) == value


def test_what_is_not_asked_for_is_not_decoded() -> None:
    def handle(message: Message) -> str:
        return message.id

    handler = plan(handle)
    assert handler.decode(b"\xff") is None
    assert handler.handle is None
    assert called(handle) == "m-1"
    assert called(lambda: "nothing asked") == "nothing asked"


def test_a_payload_that_does_not_fit_is_undecodable() -> None:
    def handle(order: Order) -> None: ...

    with pytest.raises(UndecodablePayload, match=r"Expected `int`, got `str` at \$\.id"):
        plan(handle).decode(b'{"id": "x"}')


def test_positional_only_and_keyword_only_parameters_are_served() -> None:
    def handle(order: Order, /, message: Message, *, tx: Tx, conn: sqlite3.Connection) -> object:
        return (order, message, tx, conn)

    assert called(handle) == (Order(7), MESSAGE, TX, CONNECTION)


def test_optional_and_annotated_arguments_are_served() -> None:
    def handle(
        tx: Tx | None = None,
        conn: Annotated[sqlite3.Connection, "note"] | None = None,
        message: Annotated[Message, "note"] | None = None,
        order: Order | None = None,
    ) -> object:
        return (tx, conn, message, order)

    assert called(handle) == (TX, CONNECTION, MESSAGE, Order(7))


def test_what_has_a_default_and_can_not_be_served_keeps_it() -> None:
    def handle(order: Order, limit: int = 10, plain=3, note: str = "own", tx: Tx | None = None) -> object:  # type: ignore[no-untyped-def]
        return (order, limit, plain, note, tx)

    assert called(handle) == (Order(7), 10, 3, "own", TX)


async def test_an_async_handler_gives_something_to_await() -> None:
    async def handle(order: Order, conn: psycopg.AsyncConnection[Any]) -> object:
        return (order, conn)

    handler = plan(handle, "psycopg-async")
    assert handler.is_async
    assert await handler.call(Order(7), MESSAGE, TX, CONNECTION) == (Order(7), CONNECTION)


class Service:
    def method(self, order: Order, tx: Tx) -> object:
        return (self, order, tx)

    async def waiting(self, order: Order) -> object:
        return order

    @classmethod
    def of_class(cls, order: Order) -> object:
        return (cls, order)

    @staticmethod
    def free(order: Order) -> object:
        return order


class Called:
    def __call__(self, order: Order, tx: Tx) -> object:
        return (order, tx)


class CalledLater:
    async def __call__(self, order: Order) -> object:
        return order


async def test_methods_callables_and_partials_are_handlers_too() -> None:
    service = Service()

    def handle(prefix: str, order: Order, *, conn: object, tx: Tx) -> object:
        return (prefix, order, conn, tx)

    assert called(service.method) == (service, Order(7), TX)
    assert called(Service.of_class) == (Service, Order(7))
    assert called(Service.free) == Order(7)
    assert called(Called()) == (Order(7), TX)
    assert called(functools.partial(handle, "bound", conn="mine")) == ("bound", Order(7), "mine", TX)
    for later in (
        service.waiting,
        CalledLater(),
        functools.partial(CalledLater()),
        functools.partial(service.waiting),
    ):
        assert plan(later).is_async
        assert await called(later) == Order(7)


def test_a_handler_has_the_name_people_know_it_by() -> None:
    def local(order: Order) -> None: ...

    assert plan(local).name == "local"
    assert plan(functools.partial(local)).name == "local"
    assert plan(Service().method).name == "Service.method"
    assert plan(Called()).name == "Called"


def test_a_decorated_handler_is_served_by_what_it_wraps() -> None:
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return ("decorated", handle(*args, **kwargs))

    def handle(order: Order, *, tx: Tx) -> object:
        return (order, tx)

    functools.update_wrapper(decorated, handle)
    assert called(decorated) == ("decorated", (Order(7), TX))


async def test_a_decorator_that_hides_async_def_is_found_out_and_not_acked() -> None:
    async def handle(order: Order) -> None: ...

    @functools.wraps(handle)
    def decorated(*args: Any) -> Any:
        return handle(*args)

    @functools.wraps(handle)
    def scheduled(*args: Any) -> Any:
        return asyncio.ensure_future(handle(*args))

    text = r"handler '.*handle' is def but returned something to await \({}\), so its work is not done"
    with pytest.raises(HandlerError, match=text.replace("{}", "coroutine")):
        called(decorated)
    with pytest.raises(HandlerError, match=text.replace("{}", "Task")):
        called(scheduled)


def test_a_batch_handler_gets_lists() -> None:
    def orders(orders: list[Order], conn: sqlite3.Connection, tx: Tx) -> object:
        return (orders, conn, tx)

    def both(orders: Sequence[Model], messages: list[Message]) -> object:
        return (orders, messages)

    def bare(anything: list) -> object:  # type: ignore[type-arg]
        return anything

    handler = plan(orders, batch=True)
    assert handler.batch
    assert handler.decode(MESSAGE.payload) == Order(7)  # one message at a time, so that a bad one is known
    assert handler.call([Order(7)], [MESSAGE], TX, CONNECTION) == ([Order(7)], CONNECTION, TX)
    assert plan(both, batch=True).decode(MESSAGE.payload) == Model(id=7)
    assert plan(both, batch=True).call([1], [MESSAGE], TX, CONNECTION) == ([1], [MESSAGE])
    assert plan(bare, batch=True).decode(MESSAGE.payload) == {"id": 7}


HANDLES: list[tuple[Any, HandleKind | None]] = [
    (sqlite3.Connection, "sqlite3"),
    (psycopg.Connection, "psycopg"),
    (psycopg.Connection[Any], "psycopg"),
    (psycopg.AsyncConnection, "psycopg-async"),
    (asyncpg.Connection, "asyncpg"),
    (asyncpg.pool.PoolConnectionProxy, "asyncpg"),
    (sqlalchemy.orm.Session, "sqlalchemy-session"),
    (sqlalchemy.ext.asyncio.AsyncSession, "sqlalchemy-async-session"),
    (sqlalchemy.Connection, "sqlalchemy-connection"),
    (sqlalchemy.ext.asyncio.AsyncConnection, "sqlalchemy-async-connection"),
    (type("Mine", (sqlalchemy.orm.Session,), {}), "sqlalchemy-session"),
    (sqlite3.Connection | None, "sqlite3"),
    (Annotated[psycopg.AsyncConnection[Any], "note"], "psycopg-async"),
    (sqlite3.Cursor, None),
    (psycopg.Cursor, None),
    (Order, None),
    (dict[str, Any], None),
    ("text", None),
]


@pytest.mark.parametrize(("annotation", "kind"), HANDLES)
def test_handles_are_known_by_name(annotation: Any, kind: HandleKind | None) -> None:
    assert handle_kind(annotation) == kind


def test_no_driver_is_imported_to_know_them() -> None:
    code = (
        "import sys, oncebox.runtime.handlers, oncebox.codec, oncebox.identity, oncebox.stores\n"
        "print({'psycopg', 'asyncpg', 'sqlalchemy', 'pydantic', 'rfc8785'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
