"""confluent-kafka (librdkafka) against the broker."""

import os
import time

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from checklib import BOOTSTRAP, add_check, check, main, payloads, same, stored_bytes, until
from confluent_base import admin, consumer, create, fails_with, produce, producer, read

# --- topics -----------------------------------------------------------------------------------


@check
def topic_create():
    name = create("confluent-create", 3)
    meta = admin.list_topics(name, timeout=10).topics[name]
    same(sorted(meta.partitions), [0, 1, 2], "partitions")
    for p in meta.partitions.values():
        same((p.replicas, p.isrs), ([p.leader], [p.leader]), "replicas and in-sync replicas")


@check
def topic_create_again_refused():
    create("confluent-twice")
    fails_with(lambda: create("confluent-twice"), KafkaError.TOPIC_ALREADY_EXISTS)


@check
def topic_create_bad_replication_refused():
    t = NewTopic("confluent-rf3", num_partitions=1, replication_factor=3)
    fails_with(
        lambda: admin.create_topics([t])[t.topic].result(20), KafkaError.INVALID_REPLICATION_FACTOR
    )


@check
def topic_create_bad_name_refused():
    fails_with(lambda: create("no spaces please"), KafkaError.TOPIC_EXCEPTION)


@check
def topic_create_bad_config_refused():
    fails_with(lambda: create("confluent-bad", **{"retention.ms": "soon"}), KafkaError.INVALID_CONFIG)


@check
def topic_create_validate_only():
    t = NewTopic("confluent-dry", num_partitions=2, replication_factor=1)
    admin.create_topics([t], validate_only=True)[t.topic].result(20)
    assert "confluent-dry" not in admin.list_topics(timeout=10).topics


@check
def topic_list():
    create("confluent-list-a")
    create("confluent-list-b")
    both = {"confluent-list-a", "confluent-list-b"}
    until(lambda: both <= set(admin.list_topics(timeout=10).topics), 5, "listed")


@check
def topic_describe():
    name = create("confluent-describe", 2)
    answer = admin.describe_topics(TopicCollection([name]))[name].result(20)
    same(len(answer.partitions), 2, "partitions")
    assert answer.topic_id is not None and str(answer.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"


@check
def topic_alter_config():
    name = create("confluent-config", **{"retention.ms": "3600000"})

    def value(key):
        r = ConfigResource(ResourceType.TOPIC, name)
        return admin.describe_configs([r])[r].result(20)[key].value

    same(value("retention.ms"), "3600000", "as created")
    change = [
        ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
    ]
    r = ConfigResource(ResourceType.TOPIC, name, incremental_configs=change)
    admin.incremental_alter_configs([r])[r].result(20)
    until(lambda: value("retention.ms") == "7200000", 5, "set")
    same(value("max.message.bytes"), "2000", "set along with it")
    undo = [ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)]
    r = ConfigResource(ResourceType.TOPIC, name, incremental_configs=undo)
    admin.incremental_alter_configs([r])[r].result(20)
    until(lambda: value("retention.ms") == "604800000", 5, "back at the default")


@check
def topic_delete():
    name = create("confluent-delete")
    produce(name, [b"x"])
    admin.delete_topics([name])[name].result(20)
    until(lambda: name not in admin.list_topics(timeout=10).topics, 10, "topic is gone")
    fails_with(
        lambda: admin.delete_topics([name])[name].result(20), KafkaError.UNKNOWN_TOPIC_OR_PART
    )


@check
def topic_recreate_is_empty():
    name = create("confluent-recreate")
    produce(name, [b"old"] * 5)
    admin.delete_topics([name])[name].result(20)

    def again():
        try:
            return create(name)
        except KafkaException:
            return None

    until(again, 20, "topic created again")
    produce(name, [b"new"])
    same([(m.offset(), m.value()) for m in read(name, 1)], [(0, b"new")], "messages")


@check
def partitions_create():
    name = create("confluent-grow", 1)
    admin.create_partitions([NewPartitions(name, 4)])[name].result(20)
    until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4, 10, "four")
    produce(name, [b"in the new one"], partition=3)
    fails_with(
        lambda: admin.create_partitions([NewPartitions(name, 2)])[name].result(20),
        KafkaError.INVALID_PARTITIONS,
    )


@check
def cluster_describe():
    answer = admin.describe_cluster().result(20)
    same(len(answer.nodes), 1, "brokers")
    assert answer.cluster_id
    same(f"{answer.nodes[0].host}:{answer.nodes[0].port}", BOOTSTRAP, "address")


@check
def broker_config_describe():
    node = admin.describe_cluster().result(20).nodes[0].id
    r = ConfigResource(ResourceType.BROKER, str(node))
    entries = admin.describe_configs([r])[r].result(20)
    assert "log.segment.bytes" in entries, sorted(entries)


@check
def topic_auto_created():
    name = "confluent-auto-created"
    produce(name, [b"first"])
    same([m.value() for m in read(name, 1)], [b"first"], "values")


# --- records ----------------------------------------------------------------------------------


def codec(name):
    def body():
        topic, values = create(f"confluent-codec-{name}"), payloads(300)
        produce(topic, values, compression_type=name, linger_ms=50)
        same([m.value() for m in read(topic, 300)], values, "values")
        stored = stored_bytes(topic)
        raw = sum(map(len, values))
        if name == "none":
            assert stored >= raw, f"{stored} bytes stored for {raw}"
        else:
            assert 0 < stored < raw / 2, f"not compressed: {stored} bytes stored for {raw}"

    add_check(f"codec_{name}", body)


for _name in ("none", "gzip", "snappy", "lz4", "zstd"):
    codec(_name)


@check
def keys_headers_nulls_timestamps():
    topic, p, when = create("confluent-fields"), producer(), 1_600_000_000_000
    sent = [
        (b"k", b"v", [("h1", b"a"), ("h1", b"b"), ("empty", b""), ("null", None)], when),
        (None, b"keyless", None, when + 1),
        (b"tombstone", None, None, when + 2),
        (b"", b"", [("\u00fc", "\u00fc".encode())], when + 3),
    ]
    for key, value, headers, ts in sent:
        p.produce(topic, value, key=key, headers=headers, timestamp=ts)
    p.flush(20)
    got = [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in read(topic, 4)]
    same(got, sent, "fields")


@check
def log_append_time():
    topic = create("confluent-append-time", **{"message.timestamp.type": "LogAppendTime"})
    p, before = producer(compression_type="zstd"), int(time.time() * 1000)
    p.produce(topic, b"x", timestamp=1000)
    p.flush(20)
    kind, ts = read(topic, 1)[0].timestamp()
    same(kind, 2, "timestamp type")
    assert before - 1000 <= ts <= int(time.time() * 1000) + 1000, ts


@check
def large_message():
    topic, value = create("confluent-large"), os.urandom(950_000)
    produce(topic, [value], message_max_bytes=2_000_000)
    same([m.value() for m in read(topic, 1)], [value], "value")


@check
def large_message_when_allowed():
    topic = create("confluent-larger", **{"max.message.bytes": "6000000"})
    value = os.urandom(5_000_000)
    produce(topic, [value, b"small"], message_max_bytes=8_000_000)
    same([m.value() for m in read(topic, 2)], [value, b"small"], "values")


@check
def too_large_refused():
    topic = create("confluent-too-large", **{"max.message.bytes": "1000"})
    p, errors = producer(), []
    p.produce(topic, os.urandom(5000), on_delivery=lambda error, _: errors.append(error))
    p.flush(20)
    same(errors[0].code(), KafkaError.MSG_SIZE_TOO_LARGE, "error")
    produce(topic, [b"fits"])
    same([m.value() for m in read(topic, 1)], [b"fits"], "values")


@check
def idempotent_producer():
    topic, values = create("confluent-idempotent", 3), payloads(3000, 100)
    produce(topic, values, enable_idempotence=True, linger_ms=1)
    got = read(topic, 3000, partitions=3)
    same(sorted(m.value() for m in got), sorted(values), "values, each once")


@check
def acks_zero_and_one():
    topic = create("confluent-acks")
    for acks in (0, 1):
        p = producer(acks=acks)
        p.produce(topic, f"acks={acks}".encode())
        same(p.flush(20), 0, "left in the queue")
        until(lambda: admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})[
            TopicPartition(topic, 0)].result(10).offset == acks + 1, 10, "the record is there")
    same([m.value() for m in read(topic, 2)], [b"acks=0", b"acks=1"], "values")


@check
def fetch_from_the_middle_of_a_batch():
    topic = create("confluent-middle")
    produce(topic, payloads(100, 50), linger_ms=200)
    got = read(topic, 63, start=37)
    same([m.offset() for m in got], list(range(37, 100)), "offsets")


@check
def offsets_earliest_latest():
    topic = create("confluent-watermarks")
    produce(topic, [b"x"] * 7)
    c = consumer("confluent-watermarks")
    same(c.get_watermark_offsets(TopicPartition(topic, 0), timeout=10), (0, 7), "low and high")
    c.close()


@check
def offsets_for_times():
    topic, p = create("confluent-times"), producer()
    for ts in (2000, 4000, 6000, 8000):
        p.produce(topic, b"x", timestamp=ts)
        p.flush(20)
    c = consumer("confluent-times")

    def at(ts):
        return c.offsets_for_times([TopicPartition(topic, 0, ts)], timeout=10)[0].offset

    same([at(1), at(2000), at(3000), at(8000)], [0, 0, 1, 3], "offsets")
    assert at(9000) < 0, at(9000)  # none so late: librdkafka says "end"
    c.close()


@check
def offset_of_max_timestamp():
    topic, p = create("confluent-maxts"), producer()
    for ts in (2000, 9000, 6000):
        p.produce(topic, b"x", timestamp=ts)
        p.flush(20)
    tp = TopicPartition(topic, 0)
    answer = admin.list_offsets({tp: OffsetSpec.max_timestamp()})[tp].result(20)
    same((answer.offset, answer.timestamp), (1, 9000), "offset and timestamp")


@check
def offset_out_of_range_resets():
    topic = create("confluent-range")
    produce(topic, [b"x"] * 3)
    c = consumer("confluent-range")
    c.assign([TopicPartition(topic, 0, 1000)])
    message = until(lambda: c.poll(0.5), 20, "a message after the reset")
    same((message.error(), message.offset()), (None, 0), "first message")
    c.close()


@check
def delete_records():
    topic = create("confluent-delete-records")
    produce(topic, [f"{i}".encode() for i in range(10)])
    tp = TopicPartition(topic, 0, 4)
    answer = admin.delete_records([tp])[tp].result(20)
    same(answer.low_watermark, 4, "low watermark")
    c = consumer("confluent-delete-records")
    same(c.get_watermark_offsets(TopicPartition(topic, 0), timeout=10), (4, 10), "low and high")
    c.close()
    same([m.offset() for m in read(topic, 6, start=4)], list(range(4, 10)), "offsets")
    beyond = TopicPartition(topic, 0, 11)
    fails_with(
        lambda: admin.delete_records([beyond])[beyond].result(20), KafkaError.OFFSET_OUT_OF_RANGE
    )


@check
def long_poll_latency():
    topic = create("confluent-latency")
    produce(topic, [b"warm"])
    c = consumer("confluent-latency", fetch_wait_max_ms=5000, fetch_min_bytes=1)
    c.assign([TopicPartition(topic, 0, 0)])
    until(lambda: c.poll(0.5), 20, "the first message")
    p, times = producer(linger_ms=0), []
    for _ in range(5):
        time.sleep(0.4)
        started = time.monotonic()
        p.produce(topic, b"now")
        p.flush(20)
        until(lambda: c.poll(0.05), 8, "the message", pause=0)
        times.append(time.monotonic() - started)
    c.close()
    assert sorted(times)[2] < 0.5, f"seconds until a waiting consumer had it: {times}"


# --- groups -----------------------------------------------------------------------------------


class Member:
    """A consumer that keeps account of what it was assigned and what it read."""

    def __init__(self, group, topic, **config):
        self.c = consumer(group, **config)
        # Under KIP-848 assignments are told as differences, too.
        self.cooperative = (
            config.get("partition_assignment_strategy") == "cooperative-sticky"
            or config.get("group_protocol") == "consumer"
        )
        self.owned, self.revoked, self.rebalances, self.values = set(), [], 0, []
        self.c.subscribe([topic], on_assign=self.on_assign, on_revoke=self.on_revoke)

    def on_assign(self, c, partitions):
        self.rebalances += 1
        added = {p.partition for p in partitions}
        self.owned = self.owned | added if self.cooperative else added
        if self.cooperative:
            c.incremental_assign(partitions)

    def on_revoke(self, c, partitions):
        gone = {p.partition for p in partitions}
        self.revoked.append(gone)
        self.owned -= gone
        if self.cooperative:
            c.incremental_unassign(partitions)

    def poll(self):
        message = self.c.poll(0.05)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            self.values.append(message.value())


def settle(members, shares, seconds=40):
    def balanced():
        for m in members:
            m.poll()
        return sorted(len(m.owned) for m in members) == sorted(shares)

    until(balanced, seconds, f"shares {shares}; now {[m.owned for m in members]}", pause=0)


@check(limit=120)
def group_two_members_rebalance():
    topic = create("confluent-group-two", 4)
    a = Member("confluent-two", topic)
    settle([a], [4])
    b = Member("confluent-two", topic)
    settle([a, b], [2, 2])
    same(a.owned | b.owned, {0, 1, 2, 3}, "partitions of both")
    values = payloads(200, 50)
    for p in range(4):
        produce(topic, values[p * 50 : p * 50 + 50], partition=p)

    def all_read():
        a.poll()
        b.poll()
        return len(a.values) + len(b.values) >= 200

    until(all_read, 30, "all read", pause=0)
    same(sorted(a.values + b.values), sorted(values), "values, each once")
    assert a.values and b.values
    b.c.close()
    settle([a], [4])
    a.c.close()


@check(limit=150)
def group_consumer_protocol():
    """KIP-848: members share, one leaves, another comes; each record is read once, and commits stand."""
    topic, group = create("confluent-848", 4), "confluent-848"
    a = Member(group, topic, group_protocol="consumer")
    settle([a], [4])
    b = Member(group, topic, group_protocol="consumer", group_remote_assignor="range")
    settle([a, b], [2, 2], 60)
    values = payloads(80, 50)
    for p in range(4):
        produce(topic, values[p * 20 : p * 20 + 20], partition=p)

    def all_read():
        a.poll()
        b.poll()
        return len(a.values) + len(b.values) >= 80

    until(all_read, 30, "all read", pause=0)
    same(sorted(a.values + b.values), sorted(values), "values, each once")
    a.c.commit(asynchronous=False)
    b.c.commit(asynchronous=False)
    b.c.close()
    settle([a], [4], 60)
    found = admin.describe_consumer_groups([group])[group].result(20)
    same(found.state.name, "STABLE", "state")
    same(len(found.members), 1, "members")
    committed = a.c.committed([TopicPartition(topic, p) for p in range(4)], timeout=10)
    same([c.offset for c in committed], [20] * 4, "committed")
    a.c.close()


@check(limit=90)
def group_protocols_do_not_mix():
    topic, group = create("confluent-mix", 2), "confluent-mix"
    a = Member(group, topic, group_protocol="consumer")
    settle([a], [2])
    classic = consumer(group)
    classic.subscribe([topic])

    def refused():
        a.poll()
        message = classic.poll(0.1)
        return message is not None and message.error()

    error = until(refused, 30, "the classic member is refused")
    same(error.name(), "INCONSISTENT_GROUP_PROTOCOL", "error")
    classic.close()
    a.c.close()
    # Nobody is left in it: then it may change its protocol.
    b = Member(group, topic)
    settle([b], [2], 60)
    b.c.close()


@check
def group_commit_resume():
    topic, group = create("confluent-resume"), "confluent-resume"
    produce(topic, [f"{i}".encode() for i in range(10)])
    first = consumer(group)
    first.subscribe([topic])
    for _ in range(6):
        message = until(lambda: first.poll(0.5), 30, "a message")
    first.commit(message=message, asynchronous=False)
    first.close()
    second = consumer(group)
    second.subscribe([topic])
    message = until(lambda: second.poll(0.5), 30, "a message")
    same(message.offset(), 6, "resumed at")
    committed = second.committed([TopicPartition(topic, 0)], timeout=10)[0]
    same(committed.offset, 6, "committed")
    second.close()


@check
def group_commit_metadata():
    topic, group = create("confluent-meta"), "confluent-meta"
    c = consumer(group)
    c.commit(offsets=[TopicPartition(topic, 0, 5, "why\u00fc")], asynchronous=False)
    answer = c.committed([TopicPartition(topic, 0)], timeout=10)[0]
    same((answer.offset, answer.metadata), (5, "why\u00fc"), "offset and metadata")
    c.close()


@check(limit=120)
def group_static_membership():
    topic, group = create("confluent-static", 4), "confluent-static"
    a = Member(group, topic, group_instance_id="a", session_timeout_ms=30000)
    b = Member(group, topic, group_instance_id="b", session_timeout_ms=30000)
    settle([a, b], [2, 2])
    before, mine = a.rebalances, set(b.owned)
    b.c.close()
    b = Member(group, topic, group_instance_id="b", session_timeout_ms=30000)
    settle([a, b], [2, 2])
    for _ in range(40):
        a.poll()
    same((a.rebalances, b.owned), (before, mine), "rebalances of the other, partitions again")
    a.c.close()
    b.c.close()


@check(limit=120)
def group_cooperative_sticky():
    topic = create("confluent-coop", 4)
    how = {"partition_assignment_strategy": "cooperative-sticky"}
    a = Member("confluent-coop", topic, **how)
    settle([a], [4])
    b = Member("confluent-coop", topic, **how)
    settle([a, b], [2, 2])
    same([len(r) for r in a.revoked if r], [2], "what the first gave up at once")
    b.c.close()
    settle([a], [4])
    same([len(r) for r in a.revoked if r], [2], "what the first gave up in all")
    a.c.close()


@check
def group_list_describe():
    topic, group = create("confluent-gdescribe", 2), "confluent-gdescribe"
    a = Member(group, topic, client_id="my-client")
    settle([a], [2])
    listed = {g.group_id: g for g in admin.list_consumer_groups().result(20).valid}
    same(listed[group].state.name, "STABLE", "listed state")
    d = admin.describe_consumer_groups([group])[group].result(20)
    same((d.state.name, len(d.members)), ("STABLE", 1), "state and members")
    m = d.members[0]
    same((m.client_id, len(m.assignment.topic_partitions)), ("my-client", 2), "member")
    a.c.close()


@check
def group_offsets_alter():
    topic, group = create("confluent-galter", 2), "confluent-galter"
    wanted = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)]
    request = ConsumerGroupTopicPartitions(group, wanted)
    admin.alter_consumer_group_offsets([request])[group].result(20)
    ask = [ConsumerGroupTopicPartitions(group)]
    answer = admin.list_consumer_group_offsets(ask)[group].result(20)
    got = sorted((p.partition, p.offset) for p in answer.topic_partitions)
    same(got, [(0, 3), (1, 4)], "offsets")


@check
def group_delete():
    topic, group = create("confluent-gdelete"), "confluent-gdelete"
    a = Member(group, topic)
    settle([a], [1])
    fails_with(
        lambda: admin.delete_consumer_groups([group])[group].result(20), KafkaError.NON_EMPTY_GROUP
    )
    a.c.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    a.c.close()
    admin.delete_consumer_groups([group])[group].result(20)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(20).valid}
    fails_with(
        lambda: admin.delete_consumer_groups([group])[group].result(20),
        KafkaError.GROUP_ID_NOT_FOUND,
    )


if __name__ == "__main__":
    import confluent_transactions  # noqa: F401: registers its checks

    main()
