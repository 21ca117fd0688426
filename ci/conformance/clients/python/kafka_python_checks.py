"""kafka-python (pure Python) against the broker."""

import os
import threading
import time

from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka import errors as Errors
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from checklib import BOOTSTRAP, add_check, check, main, payloads, same, stored_bytes, until

local = threading.local()


def admin():
    """An admin client for each thread: the checks run side by side."""
    if not hasattr(local, "admin"):
        local.admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    return local.admin


def create(name, partitions=1, **config):
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": config}
    admin().create_topics({name: options}, wait_for_metadata=True)
    return name


def fails_with(call, error):
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"succeeded, wanted {error.__name__}")


def producer(**config):
    return KafkaProducer(bootstrap_servers=BOOTSTRAP, **{"acks": "all", **config})


def consumer(group=None, **config):
    base = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    if group:
        base.update(group_id=group, session_timeout_ms=10000, heartbeat_interval_ms=500)
    return KafkaConsumer(bootstrap_servers=BOOTSTRAP, **{**base, **config})


def produce(topic, values, partition=None, **config):
    p = producer(**config)
    futures = [p.send(topic, v, partition=partition) for v in values]
    p.flush(30)
    found = [f.get(10) for f in futures]
    p.close()
    return found


def read(topic, count, partitions=1, start=0, seconds=30):
    """Reads up to the end of the topic, and sees that it holds `count` records."""
    c = consumer()
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    c.assign(tps)
    for tp in tps:
        c.seek(tp, start)
    ends, got, limit = c.end_offsets(tps), [], time.monotonic() + seconds
    while any(c.position(tp) < ends[tp] for tp in tps):
        assert time.monotonic() < limit, f"{len(got)} read in {seconds} s"
        for records in c.poll(500).values():
            got.extend(records)
    c.close()
    same(len(got), count, "records read")
    return got


def named(answer):
    return {t["name"]: t for t in answer}


# --- topics -----------------------------------------------------------------------------------


@check
def topic_create():
    name = create("kpy-create", 3)
    found = admin().describe_topics([name])[0]
    same(len(found["partitions"]), 3, "partitions")


@check
def topic_create_again_refused():
    create("kpy-twice")
    fails_with(lambda: create("kpy-twice"), Errors.TopicAlreadyExistsError)


@check
def topic_create_bad_replication_refused():
    options = {"kpy-rf3": {"num_partitions": 1, "replication_factor": 3}}
    fails_with(lambda: admin().create_topics(options), Errors.InvalidReplicationFactorError)


@check
def topic_list():
    create("kpy-list-a")
    create("kpy-list-b")
    both = {"kpy-list-a", "kpy-list-b"}
    until(lambda: both <= set(admin().list_topics()), 5, "listed")


@check
def topic_describe():
    name = create("kpy-describe", 2)
    found = admin().describe_topics([name])[0]
    leaders = {p["leader_id"] for p in found["partitions"]}
    same(leaders, {admin().describe_cluster()["brokers"][0]["broker_id"]}, "leaders")


def value_of(topic, key):
    r = ConfigResource(ConfigResourceType.TOPIC, topic)
    found = admin().describe_configs([r], config_filter="all")["topic"][topic]
    return str(found[key]["value"])


@check
def topic_alter_config():
    name = create("kpy-config")
    r = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7200000"})
    admin().alter_configs([r])
    until(lambda: value_of(name, "retention.ms") == "7200000", 5, "set")
    undo = {"retention.ms": (AlterConfigOp.DELETE, None)}
    admin().alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, undo)])
    until(lambda: value_of(name, "retention.ms") == "604800000", 5, "back at the default")


@check
def topic_alter_config_the_old_way():
    name = create("kpy-config-old", **{"max.message.bytes": "5000"})
    r = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7200000"})
    admin().alter_configs([r], incremental=False)
    until(lambda: value_of(name, "retention.ms") == "7200000", 5, "set")
    same(value_of(name, "max.message.bytes"), "5000", "carried along by the client")


@check
def topic_delete():
    name = create("kpy-delete")
    admin().delete_topics([name])
    until(lambda: name not in admin().list_topics(), 10, "gone")
    fails_with(lambda: admin().delete_topics([name]), Errors.UnknownTopicOrPartitionError)


@check
def partitions_create():
    name = create("kpy-grow")
    admin().create_partitions({name: 3})
    until(lambda: len(admin().describe_topics([name])[0]["partitions"]) == 3, 10, "three")
    produce(name, [b"x"], partition=2)


@check
def cluster_describe():
    found = admin().describe_cluster()
    same(len(found["brokers"]), 1, "brokers")
    assert found["cluster_id"]


@check
def broker_config_describe():
    node = str(admin().describe_cluster()["brokers"][0]["broker_id"])
    r = ConfigResource(ConfigResourceType.BROKER, node)
    found = admin().describe_configs([r], config_filter="all")["broker"][node]
    assert "log.segment.bytes" in found, sorted(found)


@check
def log_dirs_describe():
    name = create("kpy-log-dirs")
    produce(name, [os.urandom(50_000)])
    size = stored_bytes(name)
    assert 50_000 <= size < 60_000, size


@check
def topic_auto_created():
    produce("kpy-auto-created", [b"first"])
    same([r.value for r in read("kpy-auto-created", 1)], [b"first"], "values")


# --- records ----------------------------------------------------------------------------------


def codec(name):
    def body():
        topic, values = create(f"kpy-codec-{name}"), payloads(300)
        kind = None if name == "none" else name
        produce(topic, values, compression_type=kind, linger_ms=50, batch_size=100_000)
        same([r.value for r in read(topic, 300)], values, "values")
        if kind:
            stored = stored_bytes(topic)
            assert 0 < stored < 150_000, f"not compressed: {stored} bytes"

    add_check(f"codec_{name}", body)


for _name in ("none", "gzip", "snappy", "lz4", "zstd"):
    codec(_name)


@check
def keys_headers_nulls_timestamps():
    topic, p, when = create("kpy-fields"), producer(), 1_600_000_000_000
    sent = [
        (b"k", b"v", [("h1", b"a"), ("h1", b"b"), ("empty", b"")], when),
        (None, b"keyless", [], when + 1),
        (b"tombstone", None, [], when + 2),
    ]
    for key, value, headers, ts in sent:
        p.send(topic, value, key=key, headers=headers, timestamp_ms=ts)
    p.flush(20)
    got = [(r.key, r.value, [tuple(h) for h in r.headers], r.timestamp) for r in read(topic, 3)]
    same(got, sent, "fields")
    p.close()


@check
def large_message():
    topic, value = create("kpy-large"), os.urandom(950_000)
    produce(topic, [value], max_request_size=2_000_000)
    same([r.value for r in read(topic, 1)], [value], "value")


@check
def too_large_refused():
    topic = create("kpy-too-large", **{"max.message.bytes": "1000"})
    fails_with(lambda: produce(topic, [os.urandom(5000)]), Errors.MessageSizeTooLargeError)
    read(topic, 0)


@check
def idempotent_producer():
    topic, values = create("kpy-idempotent", 3), payloads(1500, 100)
    produce(topic, values, enable_idempotence=True, linger_ms=2)
    got = read(topic, 1500, partitions=3)
    same(sorted(r.value for r in got), sorted(values), "values, each once")


@check
def acks_zero_and_one():
    topic = create("kpy-acks")
    for acks in (0, 1):
        produce(topic, [b"x"], acks=acks)
        tp = TopicPartition(topic, 0)
        until(
            lambda: admin().list_partition_offsets({tp: OffsetSpec.LATEST})[tp].offset == acks + 1,
            10,
            "the record is there",
        )


@check
def offsets_earliest_latest():
    topic = create("kpy-watermarks")
    produce(topic, [b"x"] * 7)
    c, tp = consumer(), TopicPartition(topic, 0)
    same(c.beginning_offsets([tp]), {tp: 0}, "beginning")
    same(c.end_offsets([tp]), {tp: 7}, "end")
    c.close()


@check
def offsets_for_times():
    topic, p, tp = create("kpy-times"), producer(), None
    for ts in (2000, 4000, 6000, 8000):
        p.send(topic, b"x", timestamp_ms=ts)
        p.flush(20)
    c, tp = consumer(), TopicPartition(topic, 0)
    got = [c.offsets_for_times({tp: ts})[tp] for ts in (1, 3000, 8000)]
    same([(g.offset, g.timestamp) for g in got], [(0, 2000), (1, 4000), (3, 8000)], "offsets")
    same(c.offsets_for_times({tp: 9000})[tp], None, "beyond the last")
    c.close()
    p.close()


@check
def delete_records():
    topic = create("kpy-delete-records")
    produce(topic, [f"{i}".encode() for i in range(10)])
    tp = TopicPartition(topic, 0)
    admin().delete_records({tp: 4})
    c = consumer()
    same(c.beginning_offsets([tp]), {tp: 4}, "beginning")
    c.close()
    same([r.offset for r in read(topic, 6, start=4)], list(range(4, 10)), "offsets")


@check
def long_poll_latency():
    topic, p = create("kpy-latency"), producer(linger_ms=0)
    p.send(topic, b"warm").get(10)
    c = consumer(fetch_max_wait_ms=5000)
    c.assign([TopicPartition(topic, 0)])
    until(lambda: c.poll(500), 20, "the first record")
    times, got = [], threading.Event()

    def wait_for_one():
        if c.poll(8000):
            times.append(time.monotonic())
        got.set()

    took = []
    for _ in range(3):
        got.clear()
        threading.Thread(target=wait_for_one, daemon=True).start()
        time.sleep(0.5)
        started = time.monotonic()
        p.send(topic, b"now").get(10)
        assert got.wait(10) and times, "no record came"
        took.append(times[-1] - started)
    c.close()
    assert sorted(took)[1] < 0.5, f"seconds until a waiting consumer had it: {took}"


# --- groups -----------------------------------------------------------------------------------


class Listener(ConsumerRebalanceListener):
    def __init__(self):
        self.revoked = []
        self.rebalances = 0

    def on_partitions_revoked(self, revoked):
        self.revoked.append(len(revoked))

    def on_partitions_assigned(self, assigned):
        self.rebalances += 1


class Member:
    """A consumer on its own thread that keeps account of what it owns and reads."""

    def __init__(self, group, topic, **config):
        self.owned, self.values, self.problem = set(), [], None
        self.listener = Listener()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(group, topic, config), daemon=True)
        self.thread.start()

    def run(self, group, topic, config):
        try:
            c = consumer(group, **config)
            c.subscribe([topic], listener=self.listener)
            while not self.done.is_set():
                for records in c.poll(100).values():
                    self.values.extend(r.value for r in records)
                self.owned = {tp.partition for tp in c.assignment()}
            c.close()
        except Exception as error:
            self.problem = error

    def stop(self):
        self.done.set()
        self.thread.join(20)
        assert self.problem is None, self.problem


def shares(members, wanted, seconds=40):
    until(lambda: sorted(len(m.owned) for m in members) == wanted, seconds, f"shares {wanted}")


@check(limit=120)
def group_two_members_rebalance():
    topic, values = create("kpy-group-two", 4), payloads(100, 50)
    a = Member("kpy-two", topic)
    shares([a], [4])
    b = Member("kpy-two", topic)
    shares([a, b], [2, 2])
    for p in range(4):
        produce(topic, values[p * 25 : p * 25 + 25], partition=p)
    until(lambda: len(a.values) + len(b.values) >= 100, 30, "all read")
    same(sorted(a.values + b.values), sorted(values), "values, each once")
    b.stop()
    shares([a], [4])
    a.stop()


@check(limit=120)
def group_static_membership():
    topic = create("kpy-static", 4)
    a = Member("kpy-static", topic, group_instance_id="a", session_timeout_ms=30000)
    b = Member("kpy-static", topic, group_instance_id="b", session_timeout_ms=30000)
    shares([a, b], [2, 2])
    before, mine = a.listener.rebalances, set(b.owned)
    b.stop()
    b = Member("kpy-static", topic, group_instance_id="b", session_timeout_ms=30000)
    shares([a, b], [2, 2])
    time.sleep(1.5)
    same((a.listener.rebalances, b.owned), (before, mine), "rebalances of the other, and the same")
    a.stop()
    b.stop()


@check(limit=120)
def group_cooperative_sticky():
    topic = create("kpy-coop", 4)
    how = {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    a = Member("kpy-coop", topic, **how)
    shares([a], [4])
    b = Member("kpy-coop", topic, **how)
    shares([a, b], [2, 2])
    same(sum(a.listener.revoked), 2, "what the first gave up")
    b.stop()
    shares([a], [4])
    same(sum(a.listener.revoked), 2, "what the first gave up in all")
    a.stop()


@check
def group_commit_resume():
    topic, group = create("kpy-resume"), "kpy-resume"
    produce(topic, [f"{i}".encode() for i in range(10)])
    tp = TopicPartition(topic, 0)
    first = consumer(group, max_poll_records=6)
    first.subscribe([topic])
    records = until(lambda: first.poll(500), 30, "records")[tp]
    first.commit({tp: OffsetAndMetadata(records[5].offset + 1, "six", -1)})
    first.close()
    second = consumer(group)
    second.subscribe([topic])
    records = until(lambda: second.poll(500), 30, "records")[tp]
    same(records[0].offset, 6, "resumed at")
    same(second.committed(tp), 6, "committed")
    same(second.committed(tp, metadata=True).metadata, "six", "metadata")
    second.close()


@check
def group_list_describe():
    topic, group = create("kpy-gdescribe", 2), "kpy-gdescribe"
    a = Member(group, topic, client_id="my-client")
    shares([a], [2])
    listed = {g["group_id"]: g for g in admin().list_groups()}
    same(listed[group]["group_state"].lower(), "stable", "listed state")
    d = admin().describe_groups([group])[group]
    same((d["group_state"].lower(), len(d["members"])), ("stable", 1), "state, members")
    same(d["members"][0]["client_id"], "my-client", "client id")
    a.stop()


@check
def group_offsets_alter_reset_delete():
    topic, group = create("kpy-galter", 2), "kpy-galter"
    produce(topic, [b"x"] * 9, partition=0)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    changes = {zero: OffsetAndMetadata(3, "", -1), one: OffsetAndMetadata(0, "", -1)}
    admin().alter_group_offsets(group, changes)
    got = admin().list_group_offsets(group)[group]
    same({tp: o.offset for tp, o in got.items()}, {zero: 3, one: 0}, "offsets")
    admin().reset_group_offsets(group, {zero: OffsetSpec.LATEST})
    same(admin().list_group_offsets(group)[group][zero].offset, 9, "after the reset")
    admin().delete_group_offsets(group, [one])
    left = {tp for tp, o in admin().list_group_offsets(group)[group].items() if o.offset >= 0}
    same(left, {zero}, "what is left")


@check
def group_delete():
    topic, group = create("kpy-gdelete"), "kpy-gdelete"
    a = Member(group, topic)
    shares([a], [1])
    same(admin().delete_groups([group])[group], "NonEmptyGroupError", "with a member")
    a.stop()
    admin().alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
    same(admin().delete_groups([group])[group], "OK", "when empty")
    assert group not in {g["group_id"] for g in admin().list_groups()}
    same(admin().delete_groups([group])[group], "GroupIdNotFoundError", "when gone")


if __name__ == "__main__":
    import kafka_python_transactions  # noqa: F401: registers its checks

    main()
