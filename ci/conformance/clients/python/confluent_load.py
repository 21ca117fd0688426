"""confluent-kafka under load on a broker that is ended and restarted: `confluent_load.py ADDR MODE`.

An idempotent producer writes numbered records to four partitions without pause; a group consumer
reads them and commits. When `stop` comes on standard input, everything is read back and compared
with what was acknowledged, read and committed.
"""

import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from checklib import BOOTSTRAP, report, say, until

MODE = sys.argv[2]
PARTITIONS = 4
TOPIC = GROUP = f"confluent-load-{MODE}"
# What librdkafka says by itself while no broker is there; a commit that ends so is tried again.
LOCAL = (KafkaError._WAIT_COORD, KafkaError._TRANSPORT, KafkaError._TIMED_OUT)


class Producing:
    def __init__(self, consuming):
        self.acked = {}  # (partition, offset) -> value
        self.failed = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(consuming,))

    def delivered(self, error, message):
        if error:
            self.failed.append(f"{error}")
        else:
            self.acked[(message.partition(), message.offset())] = message.value()

    def run(self, consuming):
        p = Producer(
            {
                "bootstrap.servers": BOOTSTRAP,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "queue.buffering.max.messages": 2000,
                "reconnect.backoff.max.ms": 500,
                "delivery.timeout.ms": 120000,
            }
        )
        number, spoken = 0, 0.0
        while not self.stop.is_set():
            for partition in range(PARTITIONS):
                while True:
                    try:
                        p.produce(
                            TOPIC,
                            f"{partition}:{number}".encode(),
                            partition=partition,
                            on_delivery=self.delivered,
                        )
                        break
                    except BufferError:
                        p.poll(0.05)
            number += 1
            p.poll(0)
            if number % 10 == 0:
                time.sleep(0.01)
            if time.monotonic() - spoken > 0.5 and consuming.committed:
                spoken = time.monotonic()
                say(f"acked {len(self.acked)}")
        left = p.flush(120)
        if left:
            self.failed.append(f"{left} still queued after flush")


class Consuming:
    def __init__(self):
        self.read = {}  # (partition, offset) -> value
        self.committed = {}  # partition -> highest offset whose commit was acknowledged
        self.tried = {}  # partition -> highest offset whose commit was tried
        self.again = []
        self.errors = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        c = Consumer(
            {
                "bootstrap.servers": BOOTSTRAP,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        c.subscribe([TOPIC])
        next_commit = time.monotonic() + 0.3
        position = {}
        while not self.stop.is_set():
            for message in c.consume(500, 0.1):
                if message.error():
                    if message.error().code() not in LOCAL:
                        self.errors.append(f"{message.error()}")
                    continue
                at = (message.partition(), message.offset())
                if self.read.setdefault(at, message.value()) != message.value():
                    self.again.append(at)
                position[at[0]] = at[1] + 1
            if time.monotonic() > next_commit and position:
                self.commit(c, dict(position))
                next_commit = time.monotonic() + 0.3
        c.close()

    def commit(self, c, position):
        for p, offset in position.items():
            self.tried[p] = max(offset, self.tried.get(p, 0))
        end = time.monotonic() + 120
        while True:
            try:
                wanted = [TopicPartition(TOPIC, p, o) for p, o in position.items()]
                for done in c.commit(offsets=wanted, asynchronous=False):
                    if done.error is None:
                        self.committed[done.partition] = done.offset
                    else:
                        self.errors.append(f"commit: {done.error}")
                return
            except KafkaException as error:
                if error.args[0].code() not in LOCAL or time.monotonic() > end:
                    self.errors.append(f"commit: {error}")
                    return
                time.sleep(0.1)


def read_back():
    c = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "load-reader", "enable.auto.commit": False})
    everything = {}
    for p in range(PARTITIONS):
        tp = TopicPartition(TOPIC, p)
        low, high = until(lambda: c.get_watermark_offsets(tp, timeout=20), 40, "watermarks")
        c.assign([TopicPartition(TOPIC, p, low)])
        position, end = low, time.monotonic() + 60
        while position < high:
            if time.monotonic() > end:
                raise AssertionError(f"partition {p}: at {position} of {high} after 60 s")
            for message in c.consume(1000, 0.2):
                if message.error():
                    raise AssertionError(f"{message.error()}")
                everything[(p, message.offset())] = message.value()
                position = message.offset() + 1
    committed = {
        tp.partition: tp.offset
        for tp in Consumer(
            {"bootstrap.servers": BOOTSTRAP, "group.id": GROUP}
        ).committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=30)
    }
    c.close()
    return everything, committed


def first(problems):
    return f"{len(problems)}: {problems[:3]}" if problems else None


def main():
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    consuming = Consuming()
    producing = Producing(consuming)
    producing.thread.start()
    consuming.thread.start()
    sys.stdin.readline()
    started = time.monotonic()
    producing.stop.set()
    producing.thread.join(130)
    time.sleep(1)
    consuming.stop.set()
    consuming.thread.join(60)

    try:
        log, committed = read_back()
    except BaseException as error:
        report(f"{MODE}_read_back", started, f"{error}")
        return
    report(f"{MODE}_read_back", started, None if log else "the log is empty")
    missing = [(at, v) for at, v in producing.acked.items() if log.get(at) != v]
    report(f"{MODE}_nothing_acked_missing", started, first(missing))
    values = {}
    for at, value in sorted(log.items()):
        values.setdefault(value, []).append(at)
    report(f"{MODE}_nothing_twice", started, first([v for v in values.items() if len(v[1]) > 1]))
    wrong, last = [], {}
    for (p, offset), value in sorted(log.items()):
        partition, number = map(int, value.split(b":"))
        if partition != p or number != last.get(p, -1) + 1:
            wrong.append(((p, offset), value, last.get(p)))
        last[p] = number
    report(f"{MODE}_order_kept", started, first(wrong))
    report(f"{MODE}_no_send_fails", started, first(producing.failed))
    changed = [(at, v) for at, v in consuming.read.items() if log.get(at) != v] + consuming.again
    report(f"{MODE}_what_was_read_stays", started, first(changed) if consuming.read else "nothing read")
    lost = [
        (p, o, committed.get(p))
        for p, o in consuming.committed.items()
        if not o <= committed.get(p, -1) <= consuming.tried[p]
    ]
    if not consuming.committed:
        lost = ["nothing committed"]
    report(f"{MODE}_committed_offsets_survive", started, first(lost))
    if MODE == "sigterm":
        report("sigterm_no_error_reaches_the_user", started, first(consuming.errors + producing.failed))


if __name__ == "__main__":
    main()
