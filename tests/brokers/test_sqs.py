"""SQS, as moto plays it: the suite on a standard and on a FIFO queue."""

from tests.brokers.sqs_bench import FifoBench, SqsBench
from tests.brokers.suite import Bench, BrokerSuite


class TestStandardQueue(BrokerSuite):
    def bench(self) -> Bench:
        return SqsBench()


class TestFifoQueue(BrokerSuite):
    def bench(self) -> Bench:
        return FifoBench()
