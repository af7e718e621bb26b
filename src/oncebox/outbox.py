"""The outbox in a transaction of the user's own: published if and only if that commits."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from datetime import timedelta
from typing import Any, overload

from oncebox.core.guard import Join
from oncebox.core.outgoing import Publication, publication, publish_call
from oncebox.core.run import run, run_async
from oncebox.core.steps import Call, Execute, Fetch, Op
from oncebox.engines.queries import check_schema_name
from oncebox.inbox.adapters import adapter_for
from oncebox.inbox.protocols import AsyncHandle, SyncHandle

_Headers = Mapping[str, object] | Iterable[tuple[str, object]]


class Outbox:
    """Writes messages for the relay into transactions that the caller already has.

    It opens nothing, and never begins or commits. `source` is what its messages name as theirs. A relay
    (`oncebox run`, with a sink) publishes what was committed; `notify=False` leaves it to the relay's
    polling, for those who commit thousands of times a second.
    """

    def __init__(self, source: str = "", *, schema: str = "oncebox", notify: bool = True) -> None:
        self.source = source
        self.schema = check_schema_name(schema)
        self.notify = notify

    def __repr__(self) -> str:
        return f"Outbox({self.source!r})"

    @overload
    def publish(
        self, handle: SyncHandle, type: str, payload: object, *, key: object = None, topic: str | None = None,
        headers: _Headers = (), delay: timedelta | float | None = None, id: str | None = None,
        ordered: bool = False,
    ) -> str: ...  # fmt: skip
    @overload
    def publish(
        self, handle: AsyncHandle, type: str, payload: object, *, key: object = None, topic: str | None = None,
        headers: _Headers = (), delay: timedelta | float | None = None, id: str | None = None,
        ordered: bool = False,
    ) -> Awaitable[str]: ...  # fmt: skip
    def publish(
        self,
        handle: Any,
        type: str,  # noqa: A002 - the domain's word
        payload: object,
        *,
        key: object = None,
        topic: str | None = None,
        headers: _Headers = (),
        delay: timedelta | float | None = None,
        id: str | None = None,  # noqa: A002
        ordered: bool = False,
    ) -> str | Awaitable[str]:
        """Have this message published if and only if the handle's transaction commits; returns its id.

        Awaited where the handle is async. `AutocommitHandle` outside a transaction, `MessageError` and
        `TooLarge` for what can't be sent, `SchemaMissing` before `oncebox migrate`.
        """
        out = publication(
            type, payload, key=key, topic=topic, headers=headers, delay=delay, id=id, ordered=ordered,
            source=self.source,
        )  # fmt: skip
        adapter = adapter_for(handle)
        op = self._written(out)
        return run_async(op, adapter.perform) if adapter.awaits else run(op, adapter.perform)

    def _written(self, out: Publication) -> Op[str]:
        queries = yield Join(self.schema)
        yield Execute((publish_call(queries, [out]),))
        if self.notify:
            yield Fetch(Call(queries.ring, {}))
        return out.message.id
