"""What the checks of aiokafka (asyncio) share. Each check runs in an event loop of its own."""

import asyncio
import time
from contextlib import asynccontextmanager

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka import errors as Errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import checklib
from checklib import BOOTSTRAP, same


def check(function=None, **options):
    def register(f):
        def body():
            asyncio.run(f())

        body.__name__ = f.__name__
        return checklib.check(body, **options)

    return register if function is None else register(function)


@asynccontextmanager
async def running(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def admin():
    return running(AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP))


def producer(**config):
    return running(AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, **{"acks": "all", **config}))


def new_consumer(*topics, group=None, **config):
    base = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    if group:
        base.update(group_id=group, heartbeat_interval_ms=500)
    return AIOKafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, **{**base, **config})


def consumer(*topics, **config):
    return running(new_consumer(*topics, **config))


def raise_for(answer):
    for name, code, *message in answer.topic_errors:
        if code:
            raise Errors.for_code(code)(f"{name}: {message}")


async def create(name, partitions=1, replication=1, **config):
    async with admin() as a:
        topic = NewTopic(name, partitions, replication, topic_configs=config)
        raise_for(await a.create_topics([topic]))

        async def known():
            return name in await a.list_topics()

        await until(known, 10, f"{name} is known")
    return name


async def fails_with(awaitable, error):
    try:
        await awaitable
    except error:
        return
    raise AssertionError(f"succeeded, wanted {error.__name__}")


async def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.05)


async def produce(topic, values, partition=None, **config):
    async with producer(**config) as p:
        sent = [await p.send(topic, v, partition=partition) for v in values]
        return [await f for f in sent]


async def read(topic, count, partitions=1, start=0):
    """Reads up to the end of the topic, and sees that it holds `count` records."""
    async with consumer() as c:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        c.assign(tps)
        for tp in tps:
            c.seek(tp, start)
        ends, got = await c.end_offsets(tps), []

        async def all_of_it():
            while any([await c.position(tp) < ends[tp] for tp in tps]):
                for records in (await c.getmany(timeout_ms=500)).values():
                    got.extend(records)

        await asyncio.wait_for(all_of_it(), 30)
        same(len(got), count, "records read")
        return got
