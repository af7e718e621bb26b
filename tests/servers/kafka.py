"""A Kafka cluster for tests: librdkafka's own mock cluster, in a process of its own.

It speaks Kafka's protocol (produce, fetch, groups, commits, rebalances) and keeps everything in memory:
no disk, no topic administration, no authentication. What is shown with it is labelled so in the docs.
`python -m tests.servers.kafka` is that process: it prints its addresses, then obeys lines on its input.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

from tests.servers.process import Unavailable

BROKERS = 2


class Kafka:
    """A mock cluster. It ends with its block, or with this process: it reads our end of a pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.kafka"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            text=True,
        )
        self.servers = self._line()
        self._topics = 0

    def create_topic(self, name: str = "", partitions: int = 1) -> str:
        """A new, empty topic; a name of its own unless one is given."""
        self._topics += 1
        name = name or f"topic-{self._topics}"
        self._do(f"topic {name} {partitions}")
        return name

    def delete_topic(self, name: str) -> None:
        """As an administrator does."""
        self._do(f"delete {name}")

    def go_down(self) -> None:
        """Every broker closes its connections and takes none, until `come_up`; nothing is forgotten."""
        for broker in range(1, BROKERS + 1):
            self._do(f"down {broker}")

    def come_up(self) -> None:
        for broker in range(1, BROKERS + 1):
            self._do(f"up {broker}")

    def freeze(self) -> None:
        """Stop the whole process: connections stay open, nothing answers, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._line()
        assert answer == "0", f"the mock cluster answered {answer!r} to {command!r}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise Unavailable("librdkafka's mock cluster did not start")
        return line


def serve() -> None:
    """Run a cluster until the input ends."""
    # Wheels carry librdkafka beside the package; a build against the system's finds it by name.
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    bundled = sorted(folder.glob("librdkafka*.so*"))
    library = ctypes.CDLL(str(bundled[0]) if bundled else "librdkafka.so.1")
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, text, text, text, ctypes.c_size_t]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_new.argtypes = [number, pointer, text, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_new.argtypes = [pointer, number]
    library.rd_kafka_mock_cluster_bootstraps.restype = text
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    library.rd_kafka_mock_group_initial_rebalance_delay_ms.argtypes = [pointer, ctypes.c_int32]
    library.rd_kafka_mock_topic_create.argtypes = [pointer, text, number, number]
    library.rd_kafka_mock_topic_delete.argtypes = [pointer, text]
    library.rd_kafka_mock_broker_set_down.argtypes = [pointer, ctypes.c_int32]
    library.rd_kafka_mock_broker_set_up.argtypes = [pointer, ctypes.c_int32]
    problem = ctypes.create_string_buffer(512)
    handle = library.rd_kafka_new(0, library.rd_kafka_conf_new(), problem, 512)
    cluster = library.rd_kafka_mock_cluster_new(handle, BROKERS)
    # By default the first member of a group waits three seconds for others.
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 50)
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "topic":
            answer = library.rd_kafka_mock_topic_create(cluster, words[0].encode(), int(words[1]), 1)
        elif verb == "delete":
            answer = library.rd_kafka_mock_topic_delete(cluster, words[0].encode())
        elif verb == "down":
            answer = library.rd_kafka_mock_broker_set_down(cluster, int(words[0]))
        else:
            answer = library.rd_kafka_mock_broker_set_up(cluster, int(words[0]))
        print(answer, flush=True)


if __name__ == "__main__":
    serve()
