"""kcat as Debian ships it (1.7.1 with its librdkafka) against the broker.

kcat cannot create a topic; it relies on auto-creation or on topics that kafka-python creates here.
"""

import json
import os
import subprocess
import tempfile
import time

from checklib import BOOTSTRAP, add_check, check, main, payloads, same, stored_bytes, until


def create(name, partitions=1, **config):
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    admin.create_topics({name: {"num_partitions": partitions, "configs": config}}, wait_for_metadata=True)
    admin.close()
    return name


def kcat(*args, given=None, fails=False, seconds=40):
    command = ["kcat", "-b", BOOTSTRAP, *args]
    data = given.encode() if isinstance(given, str) else given
    done = subprocess.run(command, input=data, capture_output=True, timeout=seconds)
    if (done.returncode != 0) != fails:
        raise AssertionError(f"{' '.join(args)}: exit code {done.returncode}: {done.stderr[-300:]}")
    return done.stderr if fails else done.stdout


def read(topic, *args, form="%s\n"):
    """Everything in the topic, up to its end."""
    return kcat("-C", "-q", "-t", topic, "-o", "beginning", "-e", "-f", form, *args).decode()


@check
def metadata_json():
    name = create("kcat-metadata", 3)
    meta = json.loads(kcat("-L", "-J", "-t", name))
    same(len(meta["brokers"]), 1, "brokers")
    same(meta["brokers"][0]["name"], BOOTSTRAP, "address")
    same([p["partition"] for p in meta["topics"][0]["partitions"]], [0, 1, 2], "partitions")


@check
def metadata_unknown_topic_creates_nothing():
    kcat("-L", "-t", "kcat-only-looked-at", "-X", "allow.auto.create.topics=false")
    names = [t["topic"] for t in json.loads(kcat("-L", "-J"))["topics"]]
    assert "kcat-only-looked-at" not in names, names


@check
def topic_auto_created():
    kcat("-P", "-t", "kcat-auto-created", given="hello\n")
    same(read("kcat-auto-created"), "hello\n", "values")


def codec(name):
    def body():
        topic = create(f"kcat-codec-{name}")
        text = b"\n".join(payloads(500)) + b"\n"
        kcat("-P", "-t", topic, "-z", name, "-X", "linger.ms=50", given=text)
        same(read(topic).encode(), text, "values")
        stored = stored_bytes(topic)
        if name == "none":
            assert stored >= len(text) - 500, f"{stored} bytes stored for {len(text)}"
        else:
            assert 0 < stored < len(text) / 2, f"not compressed: {stored} stored for {len(text)}"

    add_check(f"codec_{name}", body)


for _name in ("none", "gzip", "snappy", "lz4", "zstd"):
    codec(_name)


@check
def keys_headers_nulls():
    topic = create("kcat-fields")
    kcat("-P", "-t", topic, "-K:", "-H", "h1=a", "-H", "h2=b", given="key:value\n")
    kcat("-P", "-t", topic, "-K:", "-Z", given="tombstone:\n")
    got = read(topic, form="%k|%s|%S|%h\n")
    same(got, "key|value|5|h1=a,h2=b\ntombstone||-1|\n", "fields")


@check
def timestamps():
    topic, before = create("kcat-timestamps"), int(time.time() * 1000)
    kcat("-P", "-t", topic, given="x\n")
    ts = int(read(topic, form="%T\n"))
    assert before - 1000 <= ts <= int(time.time() * 1000) + 1000, ts


@check
def large_message():
    topic, size = create("kcat-large"), 900_000
    with tempfile.NamedTemporaryFile() as f:
        f.write(os.urandom(size // 2).hex().encode())
        f.flush()
        kcat("-P", "-t", topic, f.name)
    same(read(topic, form="%S\n"), f"{size}\n", "size")


@check
def too_large_refused():
    topic = create("kcat-too-large", **{"max.message.bytes": "1000"})
    error = kcat("-P", "-t", topic, given=os.urandom(2500).hex() + "\n", fails=True)
    assert b"Message size too large" in error, error
    same(read(topic), "", "values")


@check
def idempotent_producer():
    topic = create("kcat-idempotent")
    lines = "".join(f"{i}\n" for i in range(5000))
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "acks=all", given=lines)
    same(read(topic), lines, "values in order")


@check
def acks_zero_one_all():
    topic = create("kcat-acks")
    for acks in ("0", "1", "all"):
        kcat("-P", "-t", topic, "-X", f"acks={acks}", given=f"acks {acks}\n")
        until(lambda: f"acks {acks}\n" in read(topic), 10, "the record is there")
    same(read(topic), "acks 0\nacks 1\nacks all\n", "values")


@check
def offsets_from_and_to():
    topic = create("kcat-offsets")
    kcat("-P", "-t", topic, given="".join(f"{i}\n" for i in range(20)))
    args = ("-C", "-q", "-t", topic, "-p", "0", "-e", "-f", "%o ")
    same(kcat(*args, "-o", "17"), b"17 18 19 ", "from an absolute offset")
    same(kcat(*args, "-o", "-2"), b"18 19 ", "from the end")
    same(kcat(*args, "-o", "5", "-c", "3"), b"5 6 7 ", "a count")


@check
def offsets_for_times():
    topic = create("kcat-times")
    kcat("-P", "-t", topic, given="a\n")
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    kcat("-P", "-t", topic, given="b\n")
    same(kcat("-Q", "-t", f"{topic}:0:{middle}").split()[-1], b"1", "offset")
    same(kcat("-Q", "-t", f"{topic}:0:1").split()[-1], b"0", "offset of the first")
    same(read(topic, "-o", f"s@{middle}"), "b\n", "values from the time on")


@check
def offset_out_of_range_reported():
    topic = create("kcat-range")
    kcat("-P", "-t", topic, given="a\n")
    args = ("-C", "-t", topic, "-p", "0", "-o", "100", "-X", "auto.offset.reset=error", "-e")
    error = kcat(*args, fails=True)
    assert b"out of range" in error or b"out-of-range" in error, error


@check
def partitions_are_kept_apart():
    topic = create("kcat-partitions", 3)
    for p in range(3):
        kcat("-P", "-t", topic, "-p", str(p), given=f"for {p}\n")
    for p in range(3):
        same(read(topic, "-p", str(p)), f"for {p}\n", "values")


@check
def long_poll_latency():
    topic = create("kcat-latency")
    command = ["kcat", "-b", BOOTSTRAP, "-C", "-q", "-u", "-t", topic, "-o", "beginning"]
    waiting = subprocess.Popen(
        [*command, "-X", "fetch.wait.max.ms=5000", "-f", "%s\n"], stdout=subprocess.PIPE
    )
    try:
        kcat("-P", "-t", topic, given="warm\n")
        same(waiting.stdout.readline(), b"warm\n", "first")
        times = []
        for _ in range(3):
            time.sleep(0.5)
            kcat("-P", "-t", topic, given="now\n")  # ends once the broker has acknowledged
            started = time.monotonic()
            same(waiting.stdout.readline(), b"now\n", "value")
            times.append(time.monotonic() - started)
        assert sorted(times)[1] < 0.5, f"seconds after the acknowledgement: {times}"
    finally:
        waiting.kill()


class Member:
    """A running `kcat -G`, whose output goes to a file."""

    def __init__(self, group, topic, *args):
        self.out = tempfile.NamedTemporaryFile()
        self.err = tempfile.NamedTemporaryFile()
        options = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=10000")
        fast = ("-X", "heartbeat.interval.ms=500")
        command = ["kcat", "-b", BOOTSTRAP, "-u", *options, *fast, *args]
        self.process = subprocess.Popen(
            [*command, "-f", "%s\n", "-G", group, topic], stdout=self.out, stderr=self.err
        )

    def lines(self):
        return open(self.out.name).read().split("\n")[:-1]

    def owned(self):
        """Partitions of the last assignment that kcat reported."""
        reports = [l for l in open(self.err.name) if "rebalanced" in l]
        if not reports or "assigned:" not in reports[-1]:
            return 0
        return reports[-1].count("[")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


@check(limit=90)
def group_two_members_rebalance():
    topic = create("kcat-group-two", 4)
    a = Member("kcat-two", topic)
    until(lambda: a.owned() == 4, 30, "all four are the first's")
    b = Member("kcat-two", topic)
    until(lambda: (a.owned(), b.owned()) == (2, 2), 40, "two each")
    for p in range(4):
        kcat("-P", "-t", topic, "-p", str(p), given=f"{p}\n")
    until(lambda: sorted(a.lines() + b.lines()) == ["0", "1", "2", "3"], 20, "all read once")
    b.stop()
    until(lambda: a.owned() == 4, 40, "all four are the first's again")
    a.stop()


@check(limit=90)
def group_commit_resume():
    topic = create("kcat-resume")
    kcat("-P", "-t", topic, given="a\nb\n")
    first = Member("kcat-resume", topic)
    until(lambda: first.lines() == ["a", "b"], 30, "the first reads both")
    first.stop()
    kcat("-P", "-t", topic, given="c\n")
    second = Member("kcat-resume", topic)
    until(lambda: second.lines(), 30, "the second reads something")
    time.sleep(0.5)
    same(second.lines(), ["c"], "values")
    second.stop()


@check(limit=90)
def group_static_membership():
    topic = create("kcat-static", 2)
    how = ("-X", "group.instance.id=one")
    first = Member("kcat-static", topic, *how)
    until(lambda: first.owned() == 2, 30, "assigned")
    first.stop()
    again = Member("kcat-static", topic, *how)
    until(lambda: again.owned() == 2, 8, "assigned again without waiting for the session's end")
    again.stop()


@check(limit=90)
def group_member_dies():
    topic = create("kcat-dies", 2)
    quick = ("-X", "session.timeout.ms=6000")
    a = Member("kcat-dies", topic, *quick)
    until(lambda: a.owned() == 2, 30, "both are the first's")
    b = Member("kcat-dies", topic, *quick)
    until(lambda: (a.owned(), b.owned()) == (1, 1), 40, "one each")
    b.process.kill()
    b.process.wait()
    until(lambda: a.owned() == 2, 25, "both are the first's once the other's session has ended")
    a.stop()


if __name__ == "__main__":
    main()
