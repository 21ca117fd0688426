"""What the checks of confluent-kafka (librdkafka) share."""

import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from checklib import BOOTSTRAP, same, until

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


def create(name, partitions=1, **config):
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([topic])[name].result(20)
    until(lambda: name in admin.list_topics(timeout=10).topics, 10, f"{name} is known")
    return name


def fails_with(call, code):
    try:
        call()
    except KafkaException as error:
        same(error.args[0].name(), KafkaError(code).name(), "error")
        return error.args[0]
    raise AssertionError(f"succeeded, wanted {KafkaError(code).name()}")


def producer(**config):
    named = {k.replace("_", "."): v for k, v in config.items()}
    return Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all", **named})


def consumer(group, **config):
    named = {k.replace("_", "."): v for k, v in config.items()}
    base = {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10000,
        "heartbeat.interval.ms": 500,
    }
    if named.get("group.protocol") == "consumer":
        # The coordinator says both, and the client refuses to be told.
        del base["session.timeout.ms"], base["heartbeat.interval.ms"]
    return Consumer({**base, **named})


def produce(topic, values, keys=None, partition=None, **config):
    """Produces all, waits, and returns the delivered messages in order of delivery."""
    delivered, failed = [], []

    def done(error, message):
        (failed if error else delivered).append(error or message)

    p = producer(**config)
    for i, value in enumerate(values):
        extra = {} if partition is None else {"partition": partition}
        while True:
            try:
                p.produce(topic, value, key=keys[i] if keys else None, on_delivery=done, **extra)
                break
            except BufferError:
                p.poll(0.1)
    p.flush(40)
    same(failed, [], "failed deliveries")
    same(len(delivered), len(values), "deliveries")
    return delivered


def read(topic, count, partitions=1, start=0, seconds=30):
    """Reads `count` messages from the beginning, and sees that no more than that are there."""
    c = consumer(f"reader-{uuid.uuid4()}", enable_partition_eof=True)
    c.assign([TopicPartition(topic, p, start) for p in range(partitions)])
    got, ends, limit = [], set(), time.monotonic() + seconds
    while time.monotonic() < limit and (len(got) < count or len(ends) < partitions):
        message = c.poll(0.5)
        if message is None:
            continue
        if message.error():
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            ends.add(message.partition())
        else:
            got.append(message)
            ends.discard(message.partition())
    c.close()
    same(len(got), count, "messages read")
    return got
