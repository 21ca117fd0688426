"""`kafka-transactions.sh` finds a hanging transaction and ends it.

None comes about by itself: this program has the coordinators' logs be lost while a transaction is open on its partition.
"""

import sys

from kafka import KafkaConsumer, KafkaProducer

import checklib
from checklib import BOOTSTRAP, kill9, same, until
from tools_base import broker_id, create, rows
from tools_transactions import latest_committed, transactions

checklib.CHECKS.clear()  # those of the module above are for a broker that stays up


def hanging_transaction_found_and_aborted():
    topic = create("tools-hanging")
    owner = KafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="tools-hanging-id", acks="all")
    owner.init_transactions()
    owner.begin_transaction()
    owner.send(topic, b"never ended", partition=0).get(20)
    kill9("forget")
    other = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=False)
    until(lambda: behind(other, topic), 30, "a record behind it is written", pause=1)
    same(latest_committed(topic), 0, "last stable offset while it hangs")

    find = ("find-hanging", "--broker-id", broker_id(), "--max-transaction-timeout", "0")
    found = [r for r in rows(transactions(*find), ("Topic", "StartOffset")) if r["Topic"] == topic]
    same([(r["Partition"], r["StartOffset"]) for r in found], [("0", "0")], "hanging transactions of the topic")
    transactions("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    same([r for r in rows(transactions(*find), ("Topic", "StartOffset")) if r["Topic"] == topic], [], "after the abort")
    consumer = KafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP, isolation_level="read_committed", auto_offset_reset="earliest",
        group_id=None, consumer_timeout_ms=3000,
    )
    same({r.value for r in consumer}, {b"behind"}, "committed values")


def behind(producer, topic):
    try:
        return producer.send(topic, b"behind", partition=0).get(10)
    except Exception as error:
        print(f"not yet: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    checklib.add_check("hanging_transaction_found_and_aborted", hanging_transaction_found_and_aborted, limit=200)
    checklib.main()
