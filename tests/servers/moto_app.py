"""moto's server as the tests run it: a clock that can be moved, no races, and entries that fail on command.

Used as a script: `python moto_app.py PORT CONTROL [CREDENTIALS]`. `CONTROL` is a file of `LAYOUT`, which the
test writes and this process reads. With `CREDENTIALS`, nobody is let in without known ones.
"""

import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYOUT = struct.Struct("dii")
"""Seconds ahead of the machine's clock; entries of deletes and of sends that fail next."""
_DELETES, _SENDS = 8, 12
_POLL_SECONDS = 0.02


def main(port: int, control: Path, credentials: bool) -> None:
    if credentials:
        os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    with control.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), LAYOUT.size)
    _patch(memory)
    from moto.server import main as serve

    serve(["-H", "127.0.0.1", "-p", str(port)])


def _patch(memory: mmap.mmap) -> None:
    from moto.sqs import models

    backend: Any = models.SQSBackend
    module: Any = models
    # moto's queues are lists that every request's thread copies and replaces: without a lock, a message that
    # is sent while another is deleted is sometimes gone.
    lock = threading.RLock()

    def ahead() -> float:
        return float(struct.unpack_from("d", memory)[0])

    now, now_millis = module.unix_time, module.unix_time_millis
    module.unix_time = lambda: now() + ahead()
    module.unix_time_millis = lambda: now_millis() + ahead() * 1000

    def locked(name: str) -> None:
        original = getattr(backend, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return original(*args, **kwargs)

        setattr(backend, name, call)

    for name in ("send_message", "delete_message", "change_message_visibility", "get_queue_attributes"):
        locked(name)

    def failing(place: int, entries: Any, key: Callable[[Any], str]) -> list[dict[str, Any]]:
        """Entries that SQS could not deal with for reasons of its own; taken out of `entries`."""
        with lock:
            (count,) = struct.unpack_from("i", memory, place)
            failed = [key(entry) for entry in entries][:count]
            struct.pack_into("i", memory, place, count - len(failed))
        return [
            {"Id": name, "SenderFault": False, "Code": "InternalError", "Message": "on command"}
            for name in failed
        ]

    delete_batch, send_batch = backend.delete_message_batch, backend.send_message_batch

    def delete_message_batch(self: Any, queue_name: str, receipts: list[Any]) -> Any:
        failed = failing(_DELETES, receipts, lambda entry: str(entry["Id"]))
        done, errors = delete_batch(self, queue_name, receipts[len(failed) :])
        return done, [*errors, *failed]

    def send_message_batch(self: Any, queue_name: str, entries: dict[str, Any]) -> Any:
        failed = failing(_SENDS, entries.values(), lambda entry: str(entry["Id"]))
        names = {each["Id"] for each in failed}
        rest = {number: entry for number, entry in entries.items() if entry["Id"] not in names}
        done, errors = send_batch(self, queue_name, rest)
        return done, [*errors, *failed]

    backend.delete_message_batch, backend.send_message_batch = delete_message_batch, send_message_batch
    receive = backend.receive_message

    def receive_message(self: Any, queue: str, count: int, wait_seconds: int, *rest: Any) -> Any:
        deadline = time.monotonic() + wait_seconds
        while True:
            with lock:
                found = receive(self, queue, count, 0, *rest)
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(_POLL_SECONDS)

    backend.receive_message = receive_message


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), len(sys.argv) > 3)
