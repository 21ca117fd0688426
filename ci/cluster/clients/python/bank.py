"""A bank in transactions, with confluent-kafka (librdkafka): `bank.py BOOTSTRAP DIR`.

Topic `bank` has one account a partition. A teller moves money between two or three accounts in one transaction, one
record a leg, `TELLER:NUMBER:ACCOUNT:AMOUNT`; the legs of a transfer add up to nothing. Every fifth transfer is
aborted; every twenty-fifth is left to a zombie: another producer takes the transactional id before its commit. A
follower reads what is committed. The auditors, who copy each committed leg to topic `ledger`, their group's offsets in the same
transaction, are in `../java/Bank.java` alone: this client may wait for good when the group's coordinator dies while it
sends offsets (librdkafka issues 5456 and 5511). Each writes its history to `DIR/NAME.jsonl`:

`begin` (n, kind, legs: account and amount), then one of `committed`, `aborted`, `fenced` (n), `dropped` (the
producer is no good any more, and no commit was asked for), `unknown` (one was, and nobody told the outcome); `poll`
(p, r: offset and value of each record) of the follower; `moved` (c: how many) of the auditors.

Standard input and output as with `load.py`. `bank.py final BOOTSTRAP DIR` reads both topics, and where they end with and
without what is not committed, into `DIR/final.jsonl`.
"""

import random
import sys
import threading
import time

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from load import INFORMATION, History

BANK, LEDGER = "bank", "ledger"
ACCOUNTS, BOOKS = 6, 3  # partitions of each
PAUSE = 0.2  # between two transfers of a teller
TIMEOUT_MS = 20000  # of a transaction: what a client left open must be over before the end is read
PATIENCE = 60  # seconds that one call may be repeated


class Run:
    def __init__(self, bootstrap, folder):
        self.bootstrap, self.folder = bootstrap, folder
        self.stop = threading.Event()
        self.ends = None  # account -> last stable offset, once the tellers are done


def again(call):
    """Repeats a call of the transactional API for as long as the client says that this is the thing to do."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise


def opened(run, history, transactional_id):
    """A producer that has taken the transactional id; none if the run ends before."""

    def spoken(error):
        if error.code() not in INFORMATION:
            history.problem("client", error)

    while not run.stop.is_set():
        producer = Producer(
            {
                "bootstrap.servers": run.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "error_cb": spoken,
            }
        )
        try:
            again(lambda: producer.init_transactions(15))
            return producer
        except KafkaException as error:
            history.problem("init_transactions", error)
            time.sleep(0.5)
    return None


def end_badly(producer, history, error, asked):
    """What became of a transaction that broke off, once it is aborted or given up."""
    history.problem("transaction", error)
    if error.args[0].txn_requires_abort():
        try:
            again(lambda: producer.abort_transaction(15))
            return "aborted"
        except KafkaException as worse:
            history.problem("abort_transaction", worse)
    return "unknown" if asked else "dropped"


def legs_of(chance):
    accounts = chance.sample(range(ACCOUNTS), chance.choice((2, 2, 3)))
    amounts = [chance.randint(1, 100) for _ in accounts[1:]]
    return [[accounts[0], -sum(amounts)], *map(list, zip(accounts[1:], amounts))]


class Teller:
    def __init__(self, run, name):
        self.run, self.name = run, name
        self.history = History(run.folder, name, "teller")
        self.chance = random.Random(name)
        self.producer = None

    def work(self):
        number = 0
        while not self.run.stop.is_set():
            if self.producer is None:
                self.producer = opened(self.run, self.history, self.name)
                continue
            number += 1
            kind = "zombie" if number % 25 == 13 else "abort" if number % 5 == 4 else "commit"
            legs = legs_of(self.chance)
            self.history.put("begin", n=number, kind=kind, legs=legs)
            outcome = self.transfer(number, kind, legs)
            self.history.put(outcome, n=number)
            if outcome in ("unknown", "dropped"):
                self.producer = None
            self.run.stop.wait(PAUSE)
        self.history.put("close")

    def transfer(self, number, kind, legs):
        producer, asked = self.producer, False
        try:
            producer.begin_transaction()
            for account, amount in legs:
                producer.produce(BANK, f"{self.name}:{number}:{account}:{amount}".encode(), partition=account)
            if kind == "commit":
                asked = True
                again(lambda: producer.commit_transaction(15))
                return "committed"
            producer.flush(15)
            if kind == "zombie":
                return self.as_zombie(producer)
            again(lambda: producer.abort_transaction(15))
            return "aborted"
        except KafkaException as error:
            return end_badly(producer, self.history, error, asked)

    def as_zombie(self, old):
        self.producer = opened(self.run, self.history, self.name)
        if self.producer is None:
            return "dropped"
        try:
            again(lambda: old.commit_transaction(15))
            return "committed"
        except KafkaException:
            return "fenced"


def stable_ends(run, topic, partitions, level):
    admin = AdminClient({"bootstrap.servers": run.bootstrap})
    places = [TopicPartition(topic, p) for p in range(partitions)]
    end = time.monotonic() + 60
    while True:
        try:
            asked = admin.list_offsets({tp: OffsetSpec.latest() for tp in places}, isolation_level=level, request_timeout=10)
            return {tp.partition: f.result(15).offset for tp, f in asked.items()}
        except KafkaException:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def follow(run, name, role, topic, partitions, ends_of):
    """Reads from the start up to the ends that `ends_of` tells once it knows them."""
    history = History(run.folder, name, role)
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": f"{name}-alone",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    reached, limit = {}, None
    while True:
        polled = {}
        for m in consumer.consume(1000, 0.2):
            if m.error() is None:
                polled.setdefault(m.partition(), []).append([m.offset(), m.value().decode(errors="replace")])
                reached[m.partition()] = m.offset() + 1
            elif m.error().code() == KafkaError._PARTITION_EOF:
                reached[m.partition()] = max(m.offset(), reached.get(m.partition(), 0))
            else:
                history.problem("poll", m.error())
        for p, records in polled.items():
            history.put("poll", topic=topic, p=p, r=records)
        ends = ends_of()
        if ends is None:
            continue
        limit = limit or time.monotonic() + 60
        if all(reached.get(p, 0) >= e for p, e in ends.items()):
            history.put("close")
            break
        if time.monotonic() > limit:
            history.problem("end", f"reached {reached} of {ends}")
            break
    consumer.close()


def bank(run):
    tellers = [threading.Thread(target=Teller(run, f"python-teller-{n}").work) for n in (1, 2)]
    words = (run, "python-bank-follower", "follower", BANK, ACCOUNTS, lambda: run.ends)
    follower = threading.Thread(target=follow, args=words)
    for thread in (*tellers, follower):
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    run.stop.set()
    for thread in tellers:
        thread.join()
    print("produced", flush=True)
    sys.stdin.readline()  # until the others are done, too
    time.sleep(1)  # markers are written after their commit is answered
    run.ends = stable_ends(run, BANK, ACCOUNTS, IsolationLevel.READ_COMMITTED)
    follower.join()
    print("done", flush=True)


def final(run):
    history = History(run.folder, "final", "final")
    limit = time.monotonic() + TIMEOUT_MS / 1000 + 20
    for topic, partitions in ((BANK, ACCOUNTS), (LEDGER, BOOKS)):
        while True:
            stable = stable_ends(run, topic, partitions, IsolationLevel.READ_COMMITTED)
            high = stable_ends(run, topic, partitions, IsolationLevel.READ_UNCOMMITTED)
            if stable == high or time.monotonic() > limit:
                break
            time.sleep(0.5)
        history.put("ends", topic=topic, stable=stable, high=high)
        follow(run, f"final-{topic}", "final", topic, partitions, lambda ends=stable: ends)
    history.put("close")
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "final":
        final(Run(*sys.argv[2:]))
    else:
        bank(Run(*sys.argv[1:]))
