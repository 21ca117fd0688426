"""confluent-kafka (librdkafka) as the cluster's load: `load.py BOOTSTRAP TOPIC PARTITIONS GROUP DIR`.

Two producers (`python-idempotent`, all settings stock; `python-plain`, acks=all without idempotence,
which looks at the metadata every half second and so finds a new leader without waiting for a stopped
one to answer), a consumer that follows every partition from its start (`python-follower`), a
member of the group (`python-member`), and a watcher that asks for the log start and the high watermark
of every partition again and again (`python-watcher`). Each writes its history to `DIR/NAME.jsonl`; `../../README.md`
lists the events.

Standard input takes `stop`: the producers flush, `produced` is printed, the consumers read up to the
ends of that moment, and `done` is printed.

`load.py final BOOTSTRAP TOPIC PARTITIONS GROUP DIR` reads everything once, and the group's offsets,
into `DIR/final.jsonl`.
"""

import json
import os
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

PAUSE = 0.125  # between two rounds of sends, one record to each partition
# Stock is 45 s. A member that sat before a stopped coordinator comes back under a new name, and its old name
# holds the group up for a session, which each further coordinator starts anew: with 45 s the group would
# stand still for most of the run.
SESSION_MS = 10000
DEBUG = os.environ.get("CLUSTER_DEBUG", "")  # what the follower's librdkafka logs, say `fetch`
PAD = b" " + b"x" * 80
# What librdkafka tells of connections it mends by itself; no user has to act on these.
INFORMATION = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


class History:
    """JSON lines; `t` is CLOCK_MONOTONIC, which all processes of one machine share."""

    def __init__(self, folder, client, role, **more):
        self.file = open(f"{folder}/{client}.jsonl", "a", buffering=1)
        self.lock = threading.Lock()
        self.put("open", client=client, role=role, **more)

    def put(self, event, **fields):
        line = json.dumps({"t": round(time.monotonic(), 4), "e": event, **fields}, separators=(",", ":"))
        with self.lock:
            self.file.write(line + "\n")

    def problem(self, what, error):
        self.put("error", what=what, error=str(error))


class Run:
    def __init__(self, bootstrap, topic, partitions, group, folder):
        self.bootstrap, self.topic, self.group, self.folder = bootstrap, topic, group, folder
        self.partitions = range(int(partitions))
        self.stop = threading.Event()
        self.ends = None  # partition -> end offset, once the producers are done

    def places(self):
        return [TopicPartition(self.topic, p) for p in self.partitions]


def text(value):
    """The record's name; a damaged record keeps its bytes, so that it equals no other."""
    if value is not None and value.endswith(PAD):
        return value[: -len(PAD)].decode(errors="replace")
    return f"damaged {value!r}"


def produce(run, client, idempotent, settings):
    history = History(run.folder, client, "producer", idempotent=idempotent)

    def spoken(error):
        if error.code() not in INFORMATION:
            history.problem("client", error)

    producer = Producer({"bootstrap.servers": run.bootstrap, "acks": "all", "error_cb": spoken, **settings})

    def told(partition, number):
        def callback(error, message):
            if error:
                history.put("fail", p=partition, n=number, error=str(error))
            else:
                # None: a repeated batch, and the broker did not say where the first one had gone.
                offset = -1 if message.offset() is None else message.offset()
                history.put("ack", p=partition, n=number, o=offset)

        return callback

    number, due = 0, time.monotonic()
    while not run.stop.is_set():
        for p in run.partitions:
            history.put("send", p=p, n=number)
            value = f"{client}:{p}:{number}".encode() + PAD
            try:
                producer.produce(run.topic, value, partition=p, on_delivery=told(p, number))
            except (BufferError, KafkaException) as error:
                history.put("fail", p=p, n=number, error=str(error))
        number += 1
        due = max(due + PAUSE, time.monotonic() - 1)
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)
    left = producer.flush(130)
    if left:
        history.problem("flush", f"{left} records still queued after 130 s")
    history.put("close")


def read(history, messages):
    """Notes what one poll returned; returns the position behind the last record of each partition."""
    records, position = {}, {}
    for message in messages:
        if message.error():
            if message.error().code() not in INFORMATION:
                history.problem("poll", message.error())
            continue
        records.setdefault(message.partition(), []).append([message.offset(), text(message.value())])
        position[message.partition()] = message.offset() + 1
    for p, found in records.items():
        history.put("poll", p=p, r=found)
    return position


def finished(run, position, deadline):
    """Whether a consumer has come to the ends, or has had its time for it."""
    if run.ends is None:
        return None
    deadline.setdefault("at", time.monotonic() + 60)
    there = all(position.get(p, 0) >= end for p, end in run.ends.items())
    return there or time.monotonic() > deadline["at"]


def follow(run, client):
    history = History(run.folder, client, "follower")
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": f"{client}-alone",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **({"debug": DEBUG} if DEBUG else {}),
        }
    )
    consumer.assign([TopicPartition(run.topic, p, 0) for p in run.partitions])
    history.put("assigned", p=list(run.partitions), o={str(p): 0 for p in run.partitions})
    position, deadline = {}, {}
    while not finished(run, position, deadline):
        position.update(read(history, consumer.consume(1000, 0.1)))
    consumer.close()
    history.put("close")


def offsets_of(places):
    return {str(tp.partition): max(tp.offset, -1) for tp in places if tp.error is None}


def look_up(consumer, history, places, what):
    """Asks the coordinator for the group's offsets."""
    started = round(time.monotonic(), 4)
    try:
        found = offsets_of(consumer.committed(places, timeout=30))
    except KafkaException as error:
        history.problem(what, error)
        return None
    history.put("fetched", t0=started, o=found)
    return found


def commit(consumer, history, topic, position, number):
    history.put("commit", id=number, o={str(p): o for p, o in position.items()})
    try:
        wanted = [TopicPartition(topic, p, o) for p, o in position.items()]
        done = consumer.commit(offsets=wanted, asynchronous=False)
        bad = [str(tp.error) for tp in done if tp.error is not None]
        history.put("committed", id=number, o=offsets_of(done))
        if bad:
            history.put("commit_failed", id=number, error=bad[0])
    except KafkaException as error:
        history.put("commit_failed", id=number, error=str(error))


def member(run, client):
    history = History(run.folder, client, "member")
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": run.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_MS,
        }
    )
    position = {}

    def assigned(consumer, places):
        found = look_up(consumer, history, places, "offsets at assignment")
        history.put("assigned", p=[tp.partition for tp in places], o=found)

    def gone(consumer, places):
        history.put("revoked", p=[tp.partition for tp in places])
        position.clear()

    consumer.subscribe([run.topic], on_assign=assigned, on_revoke=gone, on_lost=gone)
    number, next_commit = 0, time.monotonic() + 0.5
    stop_at = None
    while stop_at is None or time.monotonic() < stop_at:
        position.update(read(history, consumer.consume(500, 0.1)))
        if time.monotonic() > next_commit and position:
            number += 1
            commit(consumer, history, run.topic, dict(position), number)
            if number % 5 == 0:
                look_up(consumer, history, run.places(), "offsets")
            next_commit = time.monotonic() + 0.5
        if stop_at is None and run.ends is not None:
            stop_at = time.monotonic() + 5
    consumer.close()
    history.put("close")


def watch(run, client):
    """One question after the other: each answer is of a later moment than the last."""
    history = History(run.folder, client, "watcher")
    consumer = Consumer({"bootstrap.servers": run.bootstrap, "group.id": f"{client}-alone"})
    while not run.stop.wait(0.3):
        for tp in run.places():
            try:
                low, high = consumer.get_watermark_offsets(tp, timeout=2)
                history.put("marks", p=tp.partition, low=low, high=high)
            except KafkaException:
                pass  # no leader has answered; the next round asks again
    consumer.close()
    history.put("close")


def ends(run):
    """The end offsets, asked for again until every leader answers."""
    consumer = Consumer({"bootstrap.servers": run.bootstrap, "group.id": "ends"})
    found, deadline = {}, time.monotonic() + 60
    while len(found) < len(run.partitions) and time.monotonic() < deadline:
        for tp in run.places():
            try:
                found[tp.partition] = consumer.get_watermark_offsets(tp, timeout=10)[1]
            except KafkaException:
                time.sleep(0.2)
    consumer.close()
    return found


def load(run):
    fast = {"enable.idempotence": False, "topic.metadata.refresh.interval.ms": 500}
    producers = [
        threading.Thread(target=produce, args=(run, "python-idempotent", True, {"enable.idempotence": True})),
        threading.Thread(target=produce, args=(run, "python-plain", False, fast)),
    ]
    consumers = [
        threading.Thread(target=follow, args=(run, "python-follower")),
        threading.Thread(target=member, args=(run, "python-member")),
    ]
    watcher = threading.Thread(target=watch, args=(run, "python-watcher"))
    for thread in (*producers, *consumers, watcher):
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    run.stop.set()
    for thread in producers:
        thread.join()
    print("produced", flush=True)
    sys.stdin.readline()  # until the others are done, too
    run.ends = ends(run)
    for thread in (*consumers, watcher):
        thread.join()
    print("done", flush=True)


def final(run):
    history = History(run.folder, "final", "final")
    run.ends = ends(run)
    history.put("ends", o={str(p): o for p, o in run.ends.items()})
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": run.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(run.topic, p, 0) for p in run.partitions])
    history.put("assigned", p=list(run.partitions), o={str(p): 0 for p in run.partitions})
    position, deadline = {}, {}
    while not finished(run, position, deadline):
        position.update(read(history, consumer.consume(2000, 0.2)))
    look_up(consumer, history, run.places(), "offsets at the end")
    consumer.close()
    history.put("close")
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "final":
        final(Run(*sys.argv[2:]))
    else:
        load(Run(*sys.argv[1:]))
