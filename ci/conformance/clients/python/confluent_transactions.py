"""confluent-kafka's (librdkafka's) transactions; `confluent_checks.py` runs them.

An EndTxn is answered once the outcome is decided, before all markers are written, so what a commit
shows is waited for.
"""

import time

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from checklib import check, same, until
from confluent_base import admin, consumer, create, produce, producer


def transactor(name, **config):
    p = producer(transactional_id=name, linger_ms=0, **config)
    p.init_transactions(30)
    return p


def send(p, topic, *values, partition=0):
    failed = []
    for value in values:
        p.produce(topic, value, partition=partition, on_delivery=lambda e, _: e and failed.append(e))
    p.flush(30)
    if failed:
        raise KafkaException(failed[0])


def transaction(p, topic, *values, commits=True):
    p.begin_transaction()
    send(p, topic, *values)
    p.commit_transaction(30) if commits else p.abort_transaction(30)


def seen(topic, isolation="read_committed", partitions=1, start=0):
    """What a reader sees from `start` to the end, as far as the isolation level has one."""
    c = consumer(f"seen-{topic}", isolation_level=isolation, enable_partition_eof=True)
    c.assign([TopicPartition(topic, p, start) for p in range(partitions)])
    got, ends, limit = [], set(), time.monotonic() + 30
    while len(ends) < partitions:
        assert time.monotonic() < limit, f"the end of {topic} is not reached"
        message = c.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            got.append(message.value())
            ends.discard(message.partition())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ends.add(message.partition())
        else:
            raise KafkaException(message.error())
    c.close()
    return got


def becomes_visible(topic, *values):
    until(lambda: len(seen(topic)) >= len(values), 20, f"{values} committed in {topic}")
    same(seen(topic), list(values), "committed values")


def offset(group, topic):
    """The group's offset for partition 0, whether or not another is pending; None if there is none."""
    ask = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]

    def told():
        try:
            return admin.list_consumer_group_offsets(ask)[group].result(20).topic_partitions[0]
        except KafkaException as error:
            if error.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                return None  # the client's admin does not ask again
            raise

    found = until(told, 20, "the group's coordinator answers")
    return found.offset if found.offset >= 0 else None


def group_of(name):
    """A consumer that is nobody's member: its offsets go in with no generation."""
    return consumer(name).consumer_group_metadata()


def fenced(call):
    try:
        call()
    except KafkaException as error:
        wanted = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
        assert error.args[0].code() in wanted, f"not fenced, but: {error}"
        return
    raise AssertionError("succeeded, wanted to be fenced")


@check
def txn_commit():
    topic = create("confluent-txn-commit")
    p = transactor(topic)
    p.begin_transaction()
    send(p, topic, b"a", b"b")
    same(seen(topic), [], "committed before the commit")
    same(seen(topic, "read_uncommitted"), [b"a", b"b"], "uncommitted before the commit")
    p.commit_transaction(30)
    becomes_visible(topic, b"a", b"b")


@check
def txn_abort():
    topic = create("confluent-txn-abort")
    p = transactor(topic)
    transaction(p, topic, b"no", commits=False)
    transaction(p, topic, b"yes")
    becomes_visible(topic, b"yes")
    same(seen(topic, "read_uncommitted"), [b"no", b"yes"], "uncommitted")


@check
def txn_empty():
    topic = create("confluent-txn-empty")
    p = transactor(topic)
    for _ in range(3):
        transaction(p, topic)
        transaction(p, topic, commits=False)
    same(seen(topic, "read_uncommitted"), [], "uncommitted")
    transaction(p, topic, b"x")
    becomes_visible(topic, b"x")


@check
def txn_many_topics_and_partitions():
    topics = [create(f"confluent-txn-many-{x}", 3) for x in "ab"]
    p = transactor("confluent-txn-many", compression_type="zstd")
    for commits in (False, True):
        p.begin_transaction()
        for i in range(600):
            p.produce(topics[i % 2], f"{commits} {i}".encode(), partition=i % 3)
        p.flush(30)
        p.commit_transaction(30) if commits else p.abort_transaction(30)
    for at, topic in enumerate(topics):
        wanted = sorted(f"True {i}".encode() for i in range(600) if i % 2 == at)
        until(lambda t=topic: len(seen(t, partitions=3)) == 300, 20, f"300 values of {topic}")
        same(sorted(seen(topic, partitions=3)), wanted, f"values of {topic}")


@check
def txn_zombie_fenced():
    topic = create("confluent-txn-zombie")
    old = transactor(topic)
    old.begin_transaction()
    send(old, topic, b"of the zombie")
    young = transactor(topic)
    fenced(lambda: old.commit_transaction(30))
    transaction(young, topic, b"of the successor")
    becomes_visible(topic, b"of the successor")


@check
def case_47_overlapping_aborts():
    topic = create("confluent-txn-overlap")
    a, b = transactor(f"{topic}-a"), transactor(f"{topic}-b")
    a.begin_transaction()
    send(a, topic, b"a1")
    transaction(b, topic, b"b1", commits=False)
    transaction(b, topic, b"b2")
    send(a, topic, b"a2")
    same(seen(topic), [], "while the first is open")
    a.abort_transaction(30)
    transaction(a, topic, b"a3")
    becomes_visible(topic, b"b2", b"a3")
    same(seen(topic, start=3), [b"b2", b"a3"], "from the middle of both")


@check(limit=90)
def case_50_timeout_aborts():
    topic = create("confluent-txn-timeout")
    p = transactor(topic, transaction_timeout_ms=1500, message_timeout_ms=1500)
    p.begin_transaction()
    send(p, topic, b"too slow")
    produce(topic, [b"behind"])
    until(lambda: seen(topic) == [b"behind"], 40, "the transaction is given up")
    try:
        p.commit_transaction(30)
    except KafkaException:
        pass
    else:
        raise AssertionError("a transaction that timed out was committed")
    transaction(transactor(topic), topic, b"anew")
    becomes_visible(topic, b"behind", b"anew")


@check
def txn_offsets_follow_the_outcome():
    topic = create("confluent-txn-offsets")
    p, metadata = transactor(topic), group_of(topic)
    for commits, at, after in ((True, 5, 5), (False, 9, 5)):
        before = offset(topic, topic)
        p.begin_transaction()
        p.send_offsets_to_transaction([TopicPartition(topic, 0, at)], metadata, 30)
        same(offset(topic, topic), before, "while pending")
        p.commit_transaction(30) if commits else p.abort_transaction(30)
        until(lambda want=after: offset(topic, topic) == want, 10, "the offset follows")


def transform(source, target, p, c, count):
    """Moves `count` records or somewhat more, and returns how many; every third transaction is aborted and done again."""
    done = rounds = 0
    while done < count:
        batch = [m for m in c.consume(7, 1.0) if m.error() is None]
        if not batch:
            continue
        rounds += 1
        p.begin_transaction()
        for m in batch:
            p.produce(target, m.value())
        p.send_offsets_to_transaction(c.position(c.assignment()), c.consumer_group_metadata(), 30)
        if rounds % 3:
            p.commit_transaction(30)
            done += len(batch)
            continue
        p.abort_transaction(30)
        for tp in {m.partition() for m in batch}:
            first = min(m.offset() for m in batch if m.partition() == tp)
            c.seek(TopicPartition(source, tp, first))
    return done


@check(limit=120)
def txn_consume_transform_produce():
    source, target, group = create("confluent-txn-from", 2), create("confluent-txn-to"), "confluent-txn-group"
    values = [f"value {i}".encode() for i in range(60)]
    produce(source, values)
    for up_to in (30, 60):  # the second member goes on where the first stopped
        c = consumer(group, isolation_level="read_committed")
        c.subscribe([source])
        moved = len(seen(target))
        moved += transform(source, target, transactor(group), c, up_to - moved)
        c.close()
        until(lambda n=moved: len(seen(target)) >= n, 20, "the last commit shows")
    same(sorted(seen(target)), sorted(values), "values, each once")
