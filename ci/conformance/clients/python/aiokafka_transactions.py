"""aiokafka's transactions; `aiokafka_checks.py` runs them."""

import asyncio
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as Errors
from aiokafka.structs import OffsetAndMetadata

from aiokafka_base import admin, check, consumer, create, new_consumer, produce, until
from checklib import BOOTSTRAP, same


@asynccontextmanager
async def transactor(name, **config):
    p = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=name, **config)
    await p.start()
    try:
        yield p
    finally:
        # A producer that was fenced says so once more when it is stopped.
        try:
            await p.stop()
        except Errors.KafkaError:
            pass


async def send(p, topic, *values, partition=0):
    for value in values:
        await p.send_and_wait(topic, value, partition=partition)


async def transaction(p, topic, *values, commits=True):
    await p.begin_transaction()
    await send(p, topic, *values)
    await (p.commit_transaction() if commits else p.abort_transaction())


async def seen(topic, isolation="read_committed", partitions=1):
    """What a reader sees from the start to the end, as far as the isolation level has one."""
    async with consumer(isolation_level=isolation, fetch_max_wait_ms=100) as c:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        c.assign(tps)
        for tp in tps:
            c.seek(tp, 0)
        ends, got = await c.end_offsets(tps), []

        async def all_of_it():
            while any([await c.position(tp) < ends[tp] for tp in tps]):
                for records in (await c.getmany(timeout_ms=200)).values():
                    got.extend(r.value for r in records)

        await asyncio.wait_for(all_of_it(), 30)
        return got


async def becomes_visible(topic, *values):
    async def there():
        return len(await seen(topic)) >= len(values)

    await until(there, 20, f"{values} committed in {topic}")
    same(await seen(topic), list(values), "committed values")


async def offset(group, topic):
    async with admin() as a:
        found = (await a.list_consumer_group_offsets(group)).get(TopicPartition(topic, 0))
        return found.offset if found and found.offset >= 0 else None


@check
async def txn_commit():
    topic = await create("aio-txn-commit")
    async with transactor(topic) as p:
        await p.begin_transaction()
        await send(p, topic, b"a", b"b")
        same(await seen(topic), [], "committed before the commit")
        same(await seen(topic, "read_uncommitted"), [b"a", b"b"], "uncommitted before the commit")
        await p.commit_transaction()
        await becomes_visible(topic, b"a", b"b")


@check
async def txn_abort():
    topic = await create("aio-txn-abort")
    async with transactor(topic) as p:
        await transaction(p, topic, b"no", commits=False)
        await transaction(p, topic, b"yes")
        await becomes_visible(topic, b"yes")
        same(await seen(topic, "read_uncommitted"), [b"no", b"yes"], "uncommitted")


@check
async def txn_empty():
    topic = await create("aio-txn-empty")
    async with transactor(topic) as p:
        await transaction(p, topic)
        await transaction(p, topic, commits=False)
        await transaction(p, topic, b"x")
        await becomes_visible(topic, b"x")


@check
async def txn_many_topics_and_partitions():
    topics = [await create(f"aio-txn-many-{x}", 3) for x in "ab"]
    async with transactor("aio-txn-many") as p:
        for commits in (False, True):
            await p.begin_transaction()
            sent = [
                await p.send(topics[i % 2], f"{commits} {i}".encode(), partition=i % 3) for i in range(300)
            ]
            await asyncio.gather(*sent)
            await (p.commit_transaction() if commits else p.abort_transaction())
    for at, topic in enumerate(topics):
        wanted = sorted(f"True {i}".encode() for i in range(300) if i % 2 == at)

        async def all_there():
            return len(await seen(topic, partitions=3)) == 150

        await until(all_there, 20, f"150 values of {topic}")
        same(sorted(await seen(topic, partitions=3)), wanted, f"values of {topic}")


@check
async def txn_zombie_fenced():
    topic = await create("aio-txn-zombie")
    async with transactor(topic) as old:
        await old.begin_transaction()
        await send(old, topic, b"of the zombie")
        async with transactor(topic) as young:
            try:
                await old.commit_transaction()
            except Errors.ProducerFenced:
                pass
            else:
                raise AssertionError("the zombie committed")
            await transaction(young, topic, b"of the successor")
            await becomes_visible(topic, b"of the successor")


@check(limit=90)
async def case_50_timeout_aborts():
    topic = await create("aio-txn-timeout")
    async with transactor(topic, transaction_timeout_ms=1500) as p:
        await p.begin_transaction()
        await send(p, topic, b"too slow")
        await produce(topic, [b"behind"])

        async def given_up():
            return await seen(topic) == [b"behind"]

        await until(given_up, 40, "the transaction is given up")
        try:
            await p.commit_transaction()
        except Errors.KafkaError:
            pass
        else:
            raise AssertionError("a transaction that timed out was committed")


@check
async def txn_offsets_follow_the_outcome():
    topic = await create("aio-txn-offsets")
    async with transactor(topic) as p:
        for commits, at, after in ((True, 5, 5), (False, 9, 5)):
            before = await offset(topic, topic)
            await p.begin_transaction()
            await p.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(at, "")}, topic)
            same(await offset(topic, topic), before, "while pending")
            await (p.commit_transaction() if commits else p.abort_transaction())

            async def follows():
                return await offset(topic, topic) == after

            await until(follows, 10, "the offset follows")


@check(limit=120)
async def txn_consume_transform_produce():
    source, target, group = await create("aio-txn-from", 2), await create("aio-txn-to"), "aio-txn-group"
    values = [f"value {i}".encode() for i in range(60)]
    for p in (0, 1):
        await produce(source, values[p::2], partition=p)
    moved = 0
    for up_to in (30, 60):  # the second member goes on where the first stopped
        c = new_consumer(source, group=group, isolation_level="read_committed", max_poll_records=7)
        await c.start()
        async with transactor(group) as p:
            rounds = 0
            while moved < up_to:
                batches = await c.getmany(timeout_ms=500)
                if not batches:
                    continue
                rounds += 1
                await p.begin_transaction()
                for records in batches.values():
                    for r in records:
                        await p.send(target, r.value)
                next_ = {tp: OffsetAndMetadata(rs[-1].offset + 1, "") for tp, rs in batches.items()}
                await p.send_offsets_to_transaction(next_, group)
                if rounds % 3:
                    await p.commit_transaction()
                    moved += sum(map(len, batches.values()))
                else:
                    await p.abort_transaction()
                    for tp, rs in batches.items():
                        c.seek(tp, rs[0].offset)
        await c.stop()

    async def all_there():
        return len(await seen(target)) >= 60

    await until(all_there, 20, "60 values")
    same(sorted(await seen(target)), sorted(values), "values, each once")
