"""Kafka's own tool for transactions (`kafka-transactions.sh`); `tools_checks.py` runs this.

Every run of the tool starts a Java VM, so one check goes the whole way: a transaction is open, is found, is no hanging one
while its coordinator knows of it, and is aborted on its partition.
"""

import re

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

import checklib
from checklib import BOOTSTRAP, same, until
from tools_base import TOOLS, broker_id, create, rows, tool


def transactions(*args, **how):
    # this tool wants the server before the command
    return tool(f"{TOOLS}TransactionsCommand", *args, **how)


def latest_committed(topic):
    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, isolation_level="read_committed")
    try:
        tp = TopicPartition(topic, 0)
        return consumer.end_offsets([tp])[tp]
    finally:
        consumer.close()


def transactions_list_describe_find_abort():
    topic, id_ = create("tools-txn"), "tools-txn-id"
    producer = KafkaProducer(
        bootstrap_servers=BOOTSTRAP, transactional_id=id_, transaction_timeout_ms=300_000, acks="all"
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"done", partition=0).get(20)
    producer.commit_transaction()
    until(lambda: latest_committed(topic) == 2, 15, "the first is committed")
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0).get(20)

    listed = [r for r in rows(transactions("list"), ("TransactionalId", "TransactionState")) if r["TransactionalId"] == id_]
    same([r["TransactionState"] for r in listed], ["Ongoing"], "state in the list")
    text = transactions("describe", "--transactional-id", id_)
    found = rows(text, ("TransactionalId", "TransactionTimeoutMs"))[0]
    same((found["CoordinatorId"], found["TransactionState"]), (broker_id(), "Ongoing"), "coordinator and state")
    same((found["TransactionTimeoutMs"], found["TopicPartitions"]), ("300000", f"{topic}-0"), "timeout, partitions")
    where = ("--topic", topic, "--partition", "0")
    state = rows(transactions("describe-producers", *where), ("ProducerId", "CurrentTransactionStartOffset"))[0]
    same(state["ProducerId"], found["ProducerId"], "producer")
    same(state["CurrentTransactionStartOffset"], "2", "where the open transaction begins")
    assert re.fullmatch(r"-?\d+", state["LatestCoordinatorEpoch"]), state

    # Old enough for a search that takes every open transaction; but its coordinator knows of it.
    find = ("find-hanging", "--broker-id", broker_id(), "--max-transaction-timeout", "0")
    hanging = rows(transactions(*find), ("Topic", "StartOffset"))
    same([r for r in hanging if r["Topic"] == topic], [], "hanging transactions of the topic")

    text = transactions("abort", *where, "--start-offset", "17", fails=True)
    assert "Could not find any open transactions" in text, text
    transactions("abort", *where, "--start-offset", "2")
    same(latest_committed(topic), 4, "last stable offset")
    state = rows(transactions("describe-producers", *where), ("ProducerId", "CurrentTransactionStartOffset"))[0]
    same(state["CurrentTransactionStartOffset"], "None", "after the abort")
    consumer = KafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP, isolation_level="read_committed", auto_offset_reset="earliest",
        group_id=None, consumer_timeout_ms=3000,
    )
    same([r.value for r in consumer], [b"done"], "committed values")
    consumer.close()
    producer.abort_transaction()
    producer.close()


checklib.add_check("transactions_list_describe_find_abort", transactions_list_describe_find_abort, limit=200)
