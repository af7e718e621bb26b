"""The thread that talks to Kafka: polls, so that the group keeps us; commits what is finished; gives
partitions up in order. It stays in `poll` whatever handlers do, so no handler is too long for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from oncebox.brokers.contract import Delivery
from oncebox.brokers.kafka.desk import Desk
from oncebox.brokers.kafka.lanes import Lane
from oncebox.brokers.kafka.logs import Log, reason_of, translated
from oncebox.brokers.kafka.records import delivery
from oncebox.brokers.kafka.topology import ends_of, positions_of
from oncebox.brokers.kafka.watermarks import Incarnations
from oncebox.errors import BrokerUnavailable, OnceboxError

log = logging.getLogger("oncebox.kafka")

POLL_SECONDS = 0.1
CHUNK = 100
"""Records fetched from the client at a time, once the first is there."""
PAUSE_AFTER_SECONDS = 0.5
"""How long a full buffer is waited for before partitions are paused, which throws away what the client
has fetched ahead."""
PROBE_EVERY_SECONDS = 1.0


class Poller(threading.Thread):
    """One member of a consumer group, from `start` until `stop`; it is not started twice."""

    def __init__(
        self, words: dict[str, Any], topics: Sequence[str], *, desk: Desk, where: str,
        commit_every_seconds: float, drain_seconds: float, wake: Callable[[], None],
        incarnations: Incarnations | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name=f"kafka-{topics[0]}", daemon=True)
        self._words = words
        self._topics = list(topics)
        self._desk = desk
        self._where = where
        self._commit_every_seconds = commit_every_seconds
        self._drain_seconds = drain_seconds
        self._wake = wake
        self._incarnations = incarnations
        """Asked for what tells a log from another one of its name; None where nobody needs it."""
        self._stopping = threading.Event()
        self._abandoning = False
        self._flushing = False
        self._flushed = threading.Event()
        self._committed = time.monotonic()
        self._probed = 0.0
        self.trouble: OnceboxError | None = None
        """What keeps messages from coming, for as long as it does."""
        self.joined = False
        """True once the group has taken us in, be it without a partition."""
        self.ended = False
        """True once the thread is about to end, by itself or asked to."""

    def stop(self, *, abandon: bool = False) -> None:
        """Leave the group and end. With `abandon`, as a killed process would: nothing is committed."""
        self._abandoning = abandon
        self._stopping.set()

    def flush(self, seconds: float) -> bool:
        """Wait until what is finished is committed; False when that took too long."""
        self._flushed.clear()
        self._flushing = True
        return self._flushed.wait(seconds)

    def run(self) -> None:
        """Poll until told to stop, or until librdkafka says that nothing more will come."""
        consumer: Consumer | None = None
        try:
            consumer = Consumer(
                {**self._words, "error_cb": self._on_error, "on_commit": self._on_commit}, logger=Log()
            )
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping.is_set():
                self._turn(consumer)
        except Exception as error:
            if not isinstance(error, (KafkaException, OnceboxError)):
                log.exception("%s: the polling thread failed", self._where)
            failed = error if isinstance(error, OnceboxError) else translated(error, self._where)
            self.trouble = BrokerUnavailable(str(failed))
        finally:
            self._end(consumer)

    def _end(self, consumer: Consumer | None) -> None:
        self.ended = True
        self._stopping.set()
        try:
            if consumer is not None:
                consumer.close()  # calls _on_revoke, which commits
        except Exception as error:
            log.debug("%s: closing: %s", self._where, error)
        self._desk.retire(self._desk.lanes())
        self._flushed.set()
        self._wake()

    # One turn

    def _turn(self, consumer: Consumer) -> None:
        now = time.monotonic()
        due = now - self._committed >= self._commit_every_seconds
        if due or self._flushing or self._desk.is_behind():
            self._commit(consumer, now)
        if self.trouble is not None and now - self._probed > PROBE_EVERY_SECONDS:
            self._probe(consumer)
        if self._incarnations is not None:
            self._incarnations.ask_again(consumer, self._desk.lanes())
        paused = self._hold(consumer)
        if (record := consumer.poll(POLL_SECONDS if not paused else POLL_SECONDS / 5)) is None:
            return
        self._read(consumer, [record])
        # The first came alone, after a wait; what else is there comes without one.
        while not self._desk.is_full() and not self._stopping.is_set():
            records = consumer.consume(CHUNK, 0)
            self._read(consumer, records)
            if len(records) < CHUNK:
                break

    def _read(self, consumer: Consumer, records: Iterable[Record]) -> None:
        read: list[tuple[Lane, int, Delivery]] = []
        lane: Lane | None = None
        for record in records:
            problem = record.error()
            if problem is not None:
                self._on_error(problem)
                continue
            handed = delivery(record)
            where = handed.provenance
            topic, partition, offset = where["topic"], where["partition"], where["offset"]
            # They come in runs of one partition.
            if lane is None or partition != lane.partition or topic != lane.topic:
                lane = self._desk.lane(topic, partition)
            if lane is None:
                # Read under an assignment that has ended: its next owner reads it again.
                continue
            if lane.first is None:
                self._begin(consumer, lane, offset)
            if lane.may_be_known(offset, self._desk.window):
                # Kafka does not count. More than one is what tells a message that kills its process.
                handed.redelivered, handed.deliveries = True, 2
            if self._incarnations is not None:
                handed.place = self._incarnations.place(consumer, lane, record)
            lane.last = offset
            read.append((lane, offset, handed))
        if read:
            self.trouble = None
            self._desk.put(read)

    def _begin(self, consumer: Consumer, lane: Lane, offset: int) -> None:
        """The first record of an assignment. Where the group never had a position, nobody was here before
        us, and that is told at once: when this process dies of what it reads, the next one must know."""
        if lane.committed is None:
            lane.end = 0
            lane.committed = offset
            self._commit_now(consumer, [(lane, offset)])

    def _hold(self, consumer: Consumer) -> bool:
        """Backpressure: wait a little for room, then pause, and go on polling so that the group keeps us."""
        lanes = self._desk.lanes()
        full = self._desk.is_full()
        if full and not all(lane.paused for lane in lanes):
            full = not self._desk.wait_for_room(PAUSE_AFTER_SECONDS)
        elif lanes and all(lane.paused for lane in lanes):
            full = not self._desk.wait_for_room(0)
        pausing: list[Lane] = []
        resuming: list[Lane] = []
        for lane in lanes:
            hold = full or self._desk.is_ahead(lane)
            if hold != lane.paused:
                (pausing if hold else resuming).append(lane)
                lane.paused = hold
        if pausing:
            consumer.pause([TopicPartition(lane.topic, lane.partition) for lane in pausing])
        if resuming:
            consumer.resume([TopicPartition(lane.topic, lane.partition) for lane in resuming])
        return any(lane.paused for lane in lanes)

    def _probe(self, consumer: Consumer) -> None:
        """Ask whether the broker is back: nothing else tells, while there is nothing to read."""
        self._probed = time.monotonic()
        try:
            consumer.list_topics(timeout=PROBE_EVERY_SECONDS)
        except KafkaException:
            return
        self.trouble = None
        self._wake()

    # Committing

    def _commit(self, consumer: Consumer, now: float) -> None:
        self._committed = now
        wanted = self._desk.positions(self._desk.lanes(), confirmed=self._flushing)
        if self._flushing:
            self._commit_now(consumer, wanted)
            self._flushing = False
            self._flushed.set()
        elif wanted:
            try:
                consumer.commit(offsets=_offsets(wanted), asynchronous=True)
            except KafkaException as error:
                self._not_committed(error, wanted)

    def _commit_now(self, consumer: Consumer, wanted: list[tuple[Lane, int]]) -> None:
        if not wanted:
            return
        try:
            consumer.commit(offsets=_offsets(wanted), asynchronous=False)
        except KafkaException as error:
            self._not_committed(error, wanted)
        else:
            self._desk.confirm(wanted)

    def _not_committed(self, error: object, wanted: Iterable[tuple[Lane, int]]) -> None:
        # Costs duplicates at the next assignment, never a message. The next commit sends it again.
        log.debug("%s: offsets were not committed: %s", self._where, error)
        self._desk.unsent(wanted)

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        failed: list[tuple[Lane, int]] = []
        for each in partitions:
            lane = self._desk.lane(each.topic, each.partition)
            if lane is not None and (error or each.error):
                failed.append((lane, each.offset))
            elif lane is not None:
                self._desk.confirm([(lane, each.offset)])
        if failed:
            self._not_committed(error, failed)

    # Rebalances: called by librdkafka inside `poll`, on this thread

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.trouble = None
        self.joined = True
        ends, known = ends_of(consumer, partitions), positions_of(consumer, partitions)
        for each in partitions:
            place = (each.topic, each.partition)
            self._desk.assign(*place, ends.get(place), known.get(place))
        if partitions:
            log.info("%s: assigned %s", self._where, _names(partitions))

    def _on_revoke(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Drain what is in hand for a while, commit what is finished, give up the rest."""
        lanes = self._lanes(partitions)
        if not lanes:
            return
        self._unpause(consumer, lanes)
        self._desk.recall(lanes)
        if not self._stopping.is_set() and not self._desk.wait_until_answered(lanes, self._drain_seconds):
            log.warning(
                "%s: %s goes to another consumer with messages in hand; what they do is found by its ledger row",
                self._where, _names(partitions),
            )  # fmt: skip
        if not self._abandoning:
            # A commit that is on its way may be refused, and nobody would send it again.
            self._commit_now(consumer, self._desk.positions(lanes, confirmed=True))
        self._desk.retire(lanes)
        log.info("%s: gave up %s", self._where, _names(partitions))

    def _on_lost(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """They are another's already: nothing may be committed."""
        lanes = self._lanes(partitions)
        self._unpause(consumer, lanes)
        self._desk.retire(lanes)
        log.warning("%s: lost %s; what was in hand is delivered again", self._where, _names(partitions))

    def _unpause(self, consumer: Consumer, lanes: Iterable[Lane]) -> None:
        """A pause is of the partition, not of its assignment: it must not greet us when it comes back."""
        paused = [TopicPartition(lane.topic, lane.partition) for lane in lanes if lane.paused]
        if paused:
            with suppress(KafkaException):
                consumer.resume(paused)

    def _lanes(self, partitions: Iterable[TopicPartition]) -> list[Lane]:
        found = (self._desk.lane(each.topic, each.partition) for each in partitions)
        return [lane for lane in found if lane is not None]

    # Errors

    def _on_error(self, error: KafkaError) -> None:
        """What librdkafka can't mend keeps it from going on; the rest is for `receive` to say."""
        if error.code() == KafkaError._PARTITION_EOF:
            return
        if error.fatal():
            raise KafkaException(error)
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            log.warning(
                "%s: this process stood still too long, and the group went on without it", self._where
            )
            return
        if error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            log.debug("%s: %s", self._where, error)  # one broker of several
            return
        reason = reason_of(error)
        self.trouble = BrokerUnavailable(str(translated(reason or error, self._where)))
        self._wake()


def _offsets(wanted: Iterable[tuple[Lane, int]]) -> list[TopicPartition]:
    return [TopicPartition(lane.topic, lane.partition, position) for lane, position in wanted]


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}[{each.partition}]" for each in partitions)
