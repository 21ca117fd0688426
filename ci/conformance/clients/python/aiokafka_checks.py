"""aiokafka (asyncio) against the broker."""

import asyncio
import os
import time

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as Errors
from aiokafka.admin import NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from aiokafka_base import admin, check, consumer, create, fails_with, new_consumer, produce, producer, read, until
from checklib import main, payloads, same, stored_bytes

# --- topics -----------------------------------------------------------------------------------


@check
async def topic_create():
    name = await create("aio-create", 3)
    async with admin() as a:
        found = (await a.describe_topics([name]))[0]
        same(len(found["partitions"]), 3, "partitions")


@check
async def topic_create_again_refused():
    await create("aio-twice")
    await fails_with(create("aio-twice"), Errors.TopicAlreadyExistsError)


@check
async def topic_create_bad_replication_refused():
    await fails_with(create("aio-rf3", replication=3), Errors.InvalidReplicationFactorError)


@check
async def topic_list():
    await create("aio-list")
    async with admin() as a:

        async def listed():
            return "aio-list" in await a.list_topics()

        await until(listed, 5, "listed")


@check
async def topic_alter_config():
    name = await create("aio-config", **{"max.message.bytes": "5000"})

    async def value(a, key):
        r = ConfigResource(ConfigResourceType.TOPIC, name)
        answer = (await a.describe_configs([r]))[0].resources[0]
        return {entry[0]: entry[1] for entry in answer[4]}[key]

    async with admin() as a:
        same(await value(a, "max.message.bytes"), "5000", "as created")
        change = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "7200000"})
        await a.alter_configs([change])

        async def altered():
            return await value(a, "retention.ms") == "7200000"

        await until(altered, 5, "set")
        # This client knows the old call only, which sets the whole: what it leaves out reverts.
        same(await value(a, "max.message.bytes"), "1048588", "reverted")


@check
async def topic_delete():
    name = await create("aio-delete")
    async with admin() as a:
        same((await a.delete_topics([name])).topic_error_codes, [(name, 0)], "deleted")

        async def gone():
            return name not in await a.list_topics()

        await until(gone, 10, "gone")


@check
async def partitions_create():
    name = await create("aio-grow")
    async with admin() as a:
        await a.create_partitions({name: NewPartitions(3)})

        async def three():
            return len((await a.describe_topics([name]))[0]["partitions"]) == 3

        await until(three, 10, "three partitions")
    await produce(name, [b"x"], partition=2)


@check
async def topic_auto_created():
    await produce("aio-auto-created", [b"first"])
    same([r.value for r in await read("aio-auto-created", 1)], [b"first"], "values")


# --- records ----------------------------------------------------------------------------------


def codec(name):
    async def body():
        topic, values = await create(f"aio-codec-{name}"), payloads(300)
        kind = None if name == "none" else name
        await produce(topic, values, compression_type=kind, linger_ms=50, max_batch_size=100_000)
        same([r.value for r in await read(topic, 300)], values, "values")
        if kind:
            stored = stored_bytes(topic)
            assert 0 < stored < 150_000, f"not compressed: {stored} bytes"

    body.__name__ = f"codec_{name}"
    check(body)


for _name in ("none", "gzip", "snappy", "lz4", "zstd"):
    codec(_name)


@check
async def keys_headers_nulls_timestamps():
    topic, when = await create("aio-fields"), 1_600_000_000_000
    sent = [
        (b"k", b"v", (("h1", b"a"), ("h1", b"b"), ("empty", b"")), when),
        (None, b"keyless", (), when + 1),
        (b"tombstone", None, (), when + 2),
    ]
    async with producer() as p:
        for key, value, headers, ts in sent:
            await p.send_and_wait(
                topic, value, key=key, headers=list(headers), timestamp_ms=ts, partition=0
            )
    got = [(r.key, r.value, r.headers, r.timestamp) for r in await read(topic, 3)]
    same(got, sent, "fields")


@check
async def large_message():
    topic, value = await create("aio-large"), os.urandom(950_000)
    await produce(topic, [value], max_request_size=2_000_000)
    same([r.value for r in await read(topic, 1)], [value], "value")


@check
async def too_large_refused():
    topic = await create("aio-too-large", **{"max.message.bytes": "1000"})
    await fails_with(produce(topic, [os.urandom(5000)]), Errors.MessageSizeTooLargeError)


@check
async def idempotent_producer():
    topic, values = await create("aio-idempotent", 3), payloads(1500, 100)
    await produce(topic, values, enable_idempotence=True)
    got = await read(topic, 1500, partitions=3)
    same(sorted(r.value for r in got), sorted(values), "values, each once")


@check
async def acks_zero_and_one():
    topic = await create("aio-acks")
    for acks in (0, 1):
        async with producer(acks=acks) as p:
            await p.send_and_wait(topic, b"x")
    async with consumer() as c:
        tp = TopicPartition(topic, 0)

        async def both():
            return await c.end_offsets([tp]) == {tp: 2}

        await until(both, 10, "both records are there")


@check
async def offsets_earliest_latest():
    topic = await create("aio-watermarks")
    await produce(topic, [b"x"] * 7)
    tp = TopicPartition(topic, 0)
    async with consumer() as c:
        same(await c.beginning_offsets([tp]), {tp: 0}, "beginning")
        same(await c.end_offsets([tp]), {tp: 7}, "end")


@check
async def offsets_for_times():
    topic = await create("aio-times")
    async with producer() as p:
        for ts in (2000, 4000, 6000, 8000):
            await p.send_and_wait(topic, b"x", timestamp_ms=ts)
    tp = TopicPartition(topic, 0)
    async with consumer() as c:
        got = [(await c.offsets_for_times({tp: ts}))[tp] for ts in (1, 3000, 8000)]
        same([(g.offset, g.timestamp) for g in got], [(0, 2000), (1, 4000), (3, 8000)], "offsets")
        same((await c.offsets_for_times({tp: 9000}))[tp], None, "beyond the last")


@check
async def delete_records():
    topic = await create("aio-delete-records")
    await produce(topic, [b"x"] * 10)
    tp = TopicPartition(topic, 0)
    async with admin() as a:
        same(await a.delete_records({tp: RecordsToDelete(4)}), {tp: 4}, "low watermark")
    same([r.offset for r in await read(topic, 6, start=4)], list(range(4, 10)), "offsets")


@check
async def long_poll_latency():
    topic = await create("aio-latency")
    async with producer(linger_ms=0) as p, consumer(fetch_max_wait_ms=5000) as c:
        await p.send_and_wait(topic, b"warm")
        c.assign([TopicPartition(topic, 0)])
        await asyncio.wait_for(c.getone(), 20)
        took = []
        for _ in range(5):
            waiting = asyncio.create_task(c.getone())
            await asyncio.sleep(0.4)
            started = time.monotonic()
            await p.send_and_wait(topic, b"now")
            await asyncio.wait_for(waiting, 8)
            took.append(time.monotonic() - started)
    assert sorted(took)[2] < 0.5, f"seconds until a waiting consumer had it: {took}"


# --- groups -----------------------------------------------------------------------------------


class Member(ConsumerRebalanceListener):
    def __init__(self, group, topic, **config):
        self.c = new_consumer(group=group, **config)
        self.topic, self.values, self.rebalances = topic, [], 0

    async def start(self):
        self.c.subscribe([self.topic], listener=self)
        await self.c.start()
        self.task = asyncio.create_task(self.read())
        return self

    async def read(self):
        async for record in self.c:
            self.values.append(record.value)

    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        self.rebalances += 1

    @property
    def owned(self):
        return {tp.partition for tp in self.c.assignment()}

    async def stop(self):
        self.task.cancel()
        await self.c.stop()


async def shares(members, wanted):
    await until(lambda: sorted(len(m.owned) for m in members) == wanted, 40, f"shares {wanted}")


@check(limit=120)
async def group_two_members_rebalance():
    topic, values = await create("aio-group-two", 4), payloads(100, 50)
    a = await Member("aio-two", topic).start()
    await shares([a], [4])
    b = await Member("aio-two", topic).start()
    await shares([a, b], [2, 2])
    for p in range(4):
        await produce(topic, values[p * 25 : p * 25 + 25], partition=p)
    await until(lambda: len(a.values) + len(b.values) >= 100, 30, "all read")
    same(sorted(a.values + b.values), sorted(values), "values, each once")
    await b.stop()
    await shares([a], [4])
    await a.stop()


@check(limit=120)
async def group_static_membership():
    topic = await create("aio-static", 4)
    how = {"session_timeout_ms": 30000}
    a = await Member("aio-static", topic, group_instance_id="a", **how).start()
    b = await Member("aio-static", topic, group_instance_id="b", **how).start()
    await shares([a, b], [2, 2])
    await asyncio.sleep(0.5)  # the listener is called after the assignment is in place
    before, mine = a.rebalances, b.owned
    await b.stop()
    b = await Member("aio-static", topic, group_instance_id="b", **how).start()
    await shares([a, b], [2, 2])
    await asyncio.sleep(1.5)
    same((a.rebalances, b.owned), (before, mine), "rebalances of the other, and the same")
    await a.stop()
    await b.stop()


@check
async def group_commit_resume():
    topic, group = await create("aio-resume"), "aio-resume"
    await produce(topic, [b"x"] * 10)
    tp = TopicPartition(topic, 0)
    async with consumer(topic, group=group) as c:
        for _ in range(6):
            record = await asyncio.wait_for(c.getone(), 30)
        await c.commit({tp: (record.offset + 1, "six")})
    async with consumer(topic, group=group) as c:
        record = await asyncio.wait_for(c.getone(), 30)
        same((record.offset, await c.committed(tp)), (6, 6), "resumed at, committed")


@check
async def group_auto_commit():
    topic, group = await create("aio-auto-commit"), "aio-auto-commit"
    await produce(topic, [b"x"] * 10)
    how = {"group": group, "enable_auto_commit": True, "auto_commit_interval_ms": 200}
    async with consumer(topic, **how) as c:
        for _ in range(10):
            await asyncio.wait_for(c.getone(), 30)
        await asyncio.sleep(1)
    async with admin() as a:
        got = await a.list_consumer_group_offsets(group)
        same(got[TopicPartition(topic, 0)].offset, 10, "committed")


@check
async def group_list_describe():
    topic, group = await create("aio-gdescribe", 2), "aio-gdescribe"
    member = await Member(group, topic).start()
    await shares([member], [2])
    async with admin() as a:
        assert (group, "consumer") in [g[:2] for g in await a.list_consumer_groups()]
        found = (await a.describe_consumer_groups([group]))[0].groups[0]
        same((found[1:3], len(found[5])), ((group, "Stable"), 1), "group, state, members")
    await member.stop()


if __name__ == "__main__":
    import aiokafka_transactions  # noqa: F401: registers its checks

    main()
