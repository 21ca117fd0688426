"""aiokafka's transactions on a broker that is killed where this program says."""

import asyncio

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

import checklib
from aiokafka_base import check, create, until
from aiokafka_transactions import becomes_visible, offset, send, transaction, transactor
from checklib import main, same

checklib.CHECKS.clear()  # those of the module above are for a broker that stays up


async def again():
    await asyncio.to_thread(checklib.kill9)


@check(limit=230)
async def txn_survives_kill9():
    topic = await create("aio-restarts")
    async with transactor(topic) as p:
        await transaction(p, topic, b"before")
        await again()  # between transactions
        await p.begin_transaction()
        await send(p, topic, b"begun")
        await again()  # in one that commits
        await send(p, topic, b"went on")
        await p.commit_transaction()
        await again()  # right after its commit
        await becomes_visible(topic, b"before", b"begun", b"went on")
        await p.begin_transaction()
        await send(p, topic, b"given up")
        await again()  # in one that aborts
        await p.abort_transaction()
        await p.begin_transaction()
        await send(p, topic, b"with offsets")
        await p.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(5, "")}, topic)
        await again()  # while offsets are pending
        same(await offset(topic, topic), None, "the group's offset while pending")
        await p.commit_transaction()

        async def follows():
            return await offset(topic, topic) == 5

        await until(follows, 10, "the offset follows")
        await becomes_visible(topic, b"before", b"begun", b"went on", b"with offsets")


if __name__ == "__main__":
    main()
