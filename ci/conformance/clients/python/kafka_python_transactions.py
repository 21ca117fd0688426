"""kafka-python's transactions; `kafka_python_checks.py` runs them."""

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka import errors as Errors

from checklib import BOOTSTRAP, check, same, until
from tools_base import admin, create


def transactor(name, **config):
    p = KafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=name, acks="all", **config)
    p.init_transactions()
    return p


def transaction(p, topic, *values, commits=True):
    p.begin_transaction()
    for value in values:
        p.send(topic, value, partition=0).get(20)
    p.commit_transaction() if commits else p.abort_transaction()


def seen(topic, isolation="read_committed"):
    """What a reader sees from the start to the end, as far as the isolation level has one."""
    c = KafkaConsumer(bootstrap_servers=BOOTSTRAP, isolation_level=isolation, fetch_max_wait_ms=100)
    try:
        tp = TopicPartition(topic, 0)
        c.assign([tp])
        c.seek(tp, 0)
        end, got = c.end_offsets([tp])[tp], []

        def all_of_it():
            for records in c.poll(timeout_ms=100).values():
                got.extend(r.value for r in records)
            return c.position(tp) >= end

        until(all_of_it, 30, f"the end of {topic}")
        return got
    finally:
        c.close()


def becomes_visible(topic, *values):
    until(lambda: len(seen(topic)) >= len(values), 20, f"{values} committed in {topic}")
    same(seen(topic), list(values), "committed values")


@check
def txn_commit():
    topic = create("kpy-txn-commit")
    p = transactor(topic)
    p.begin_transaction()
    p.send(topic, b"a", partition=0).get(20)
    same((seen(topic), seen(topic, "read_uncommitted")), ([], [b"a"]), "before the commit")
    p.commit_transaction()
    becomes_visible(topic, b"a")
    p.close()


@check
def txn_abort():
    topic = create("kpy-txn-abort")
    p = transactor(topic)
    transaction(p, topic, b"no", commits=False)
    transaction(p, topic)
    transaction(p, topic, b"yes")
    becomes_visible(topic, b"yes")
    same(seen(topic, "read_uncommitted"), [b"no", b"yes"], "uncommitted")
    p.close()


@check
def txn_zombie_fenced():
    topic = create("kpy-txn-zombie")
    old = transactor(topic)
    old.begin_transaction()
    old.send(topic, b"of the zombie", partition=0).get(20)
    young = transactor(topic)
    try:
        old.commit_transaction()
    except Errors.KafkaError:
        pass
    else:
        raise AssertionError("the zombie committed")
    transaction(young, topic, b"of the successor")
    becomes_visible(topic, b"of the successor")
    young.close()


@check
def txn_offsets_follow_the_outcome():
    topic = create("kpy-txn-offsets")
    tp, p = TopicPartition(topic, 0), transactor(topic)

    def offset():
        with admin() as a:
            found = a.list_group_offsets({topic: None}).get(topic, {}).get(tp)
            return found.offset if found and found.offset >= 0 else None

    for commits, at, after in ((True, 5, 5), (False, 9, 5)):
        p.begin_transaction()
        p.send_offsets_to_transaction({tp: OffsetAndMetadata(at, "", -1)}, topic)
        p.commit_transaction() if commits else p.abort_transaction()
        until(lambda want=after: offset() == want, 10, "the offset follows")
    p.close()
