"""confluent-kafka's transactions on a broker that is killed where this program says."""

from confluent_kafka import TopicPartition

from checklib import check, kill9, main, same, until
from confluent_base import create
from confluent_transactions import becomes_visible, group_of, offset, send, transaction, transactor

import checklib

checklib.CHECKS.clear()  # those of the module above are for a broker that stays up


@check(limit=230)
def txn_survives_kill9():
    topic = create("confluent-restarts")
    p, metadata = transactor(topic), group_of(topic)
    transaction(p, topic, b"before")
    kill9()  # between transactions
    p.begin_transaction()
    send(p, topic, b"begun")
    kill9()  # in one that commits
    send(p, topic, b"went on")
    p.commit_transaction(60)
    kill9()  # right after its commit
    becomes_visible(topic, b"before", b"begun", b"went on")
    p.begin_transaction()
    send(p, topic, b"given up")
    kill9()  # in one that aborts
    p.abort_transaction(60)
    p.begin_transaction()
    send(p, topic, b"with offsets")
    p.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], metadata, 30)
    kill9()  # while offsets are pending
    same(offset(topic, topic), None, "the group's offset while pending")
    p.commit_transaction(60)
    until(lambda: offset(topic, topic) == 5, 10, "the offset follows")
    becomes_visible(topic, b"before", b"begun", b"went on", b"with offsets")


if __name__ == "__main__":
    main()
