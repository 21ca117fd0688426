"""Kafka's own command-line tools, run by their main class from Maven's jars.

Each check reads what a tool prints, as a person would. Every run starts a Java VM, so the checks
are few and each goes a longer way.
"""

import json
import os
import re
import subprocess
import tempfile
import time

import checklib
from checklib import BOOTSTRAP, main, same, until
from tools_base import GROUPS, JAVA, TOOLS, broker_id, command, create, rows, tool


def check(function):
    return checklib.check(function, limit=150)


def topics(*args, **how):
    return tool(TOOLS + "TopicCommand", *args, **how)


def produce(topic, text, *args):
    return tool(TOOLS + "ConsoleProducer", "--topic", topic, *args, given=text)


def consume(topic, count, *args):
    limits = ("--max-messages", str(count), "--timeout-ms", "20000")
    reader = TOOLS + "consumer.ConsoleConsumer"
    return tool(reader, "--topic", topic, *limits, *args, errors=False).splitlines()


@check
def topics_create_list_describe():
    configs = ("--config", "retention.ms=3600000", "--config", "segment.bytes=1048576")
    topics("--create", "--topic", "tools-topic", "--partitions", "3", *configs)
    assert "tools-topic" in topics("--list").split()
    text = topics("--describe", "--topic", "tools-topic")
    assert "PartitionCount: 3" in text and "retention.ms=3600000" in text, text
    assert re.search(r"TopicId: (?!AAAAAAAAAAAAAAAAAAAAAA)\S{22}", text), text
    same(len(re.findall(r"\tPartition: \d", text)), 3, "partitions")
    healthy = topics("--describe", "--unavailable-partitions", "--topic", "tools-topic")
    same(healthy.strip(), "", "unavailable partitions")
    text = topics("--create", "--topic", "tools-topic", "--partitions", "1", fails=True)
    assert "already exists" in text, text
    topics("--create", "--if-not-exists", "--topic", "tools-topic", "--partitions", "1")


@check
def topics_alter_delete():
    create("tools-alter")
    topics("--alter", "--topic", "tools-alter", "--partitions", "4")
    until(lambda: "PartitionCount: 4" in topics("--describe", "--topic", "tools-alter"), 20, "four")
    topics("--delete", "--topic", "tools-alter")
    until(lambda: "tools-alter" not in topics("--list").split(), 20, "gone")


@check
def configs_topic():
    create("tools-config")

    def configs(*args):
        return tool("kafka.admin.ConfigCommand", "--topic", "tools-config", *args)

    configs("--alter", "--add-config", "retention.ms=7200000,cleanup.policy=[compact,delete]")
    text = configs("--describe")
    assert "retention.ms=7200000" in text and "cleanup.policy=compact,delete" in text, text
    configs("--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in configs("--describe")
    text = configs("--describe", "--all")
    assert "retention.ms=604800000" in text and "DEFAULT_CONFIG" in text, text


@check
def configs_broker():
    text = tool("kafka.admin.ConfigCommand", "--describe", "--all", "--broker", broker_id())
    assert "log.segment.bytes=1073741824" in text, text


def console(codec):
    def body():
        topic = create(f"tools-console-{codec}")
        lines = [f"line {i} of {codec}" for i in range(200)]
        produce(topic, "\n".join(lines) + "\n", "--compression-codec", codec)
        same(consume(topic, 200, "--from-beginning"), lines, "lines")

    checklib.add_check(f"console_{codec}", body, limit=150)


for _codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    console(_codec)


@check
def console_keys_headers_nulls_timestamps():
    topic, before = create("tools-fields"), int(time.time() * 1000)
    reader = []
    for p in ("parse.key=true", "parse.headers=true", "null.marker=NULL"):
        reader += ["--reader-property", p]
    produce(topic, "h1:a,h2:b\tkey\tvalue\nNULL\tgone\tNULL\n", *reader)
    form = []
    for p in ("print.key", "print.headers", "print.timestamp", "print.offset", "print.partition"):
        form += ["--formatter-property", f"{p}=true"]
    got = [line.split("\t") for line in consume(topic, 2, "--from-beginning", *form)]
    same(
        [line[1:] for line in got],
        [
            ["Partition:0", "Offset:0", "h1:a,h2:b", "key", "value"],
            ["Partition:0", "Offset:1", "NO_HEADERS", "gone", "null"],
        ],
        "fields",
    )
    ts = int(got[0][0].removeprefix("CreateTime:"))
    assert before - 1000 <= ts <= int(time.time() * 1000) + 1000, ts


@check
def groups_lag_reset_delete():
    topic, group = create("tools-group", 2), "tools-group"
    produce(topic, "".join(f"k{i}\t{i}\n" for i in range(20)), "--reader-property", "parse.key=true")
    consume(topic, 20, "--from-beginning", "--group", group)
    produce(topic, "".join(f"k{i}\t{i}\n" for i in range(10)), "--reader-property", "parse.key=true")
    want = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")

    def lags():
        text = tool(GROUPS, "--describe", "--group", group)
        found = [r for r in rows(text, want) if r.get("GROUP") == group]
        return {
            r["PARTITION"]: tuple(int(r[c]) for c in want[3:]) for r in found
        }

    found = lags()
    same(sum(lag for _, _, lag in found.values()), 10, "lag in all")
    same(sum(end for _, end, _ in found.values()), 30, "log end offsets in all")
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    tool(GROUPS, *reset, "--to-earliest", "--dry-run")
    same(lags(), found, "after a dry run")
    tool(GROUPS, *reset, "--to-earliest", "--execute")
    same(sum(lag for _, _, lag in lags().values()), 30, "lag after --to-earliest")
    tool(GROUPS, *reset, "--shift-by", "3", "--execute")
    same([at for at, _, _ in lags().values()], [3, 3], "offsets after --shift-by 3")
    tool(GROUPS, *reset, "--to-latest", "--execute")
    same(sum(lag for _, _, lag in lags().values()), 0, "lag after --to-latest")
    assert group in tool(GROUPS, "--list").split()
    text = tool(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    same(set(lags()), {"1"}, f"partitions with an offset; the tool said: {text}")
    tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()


@check
def groups_members_and_state():
    topic, group = create("tools-members", 2), "tools-members"
    consumer = subprocess.Popen(
        command(TOOLS + "consumer.ConsoleConsumer", "--topic", topic, "--group", group),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        want = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")

        def members():
            text = tool(GROUPS, "--describe", "--group", group, "--members")
            if "CONSUMER-ID" not in text:
                return None
            found = [r for r in rows(text, want) if r["GROUP"] == group]
            # before the first assignment is out, a member shows without partitions
            return found if [r["#PARTITIONS"] for r in found] == ["2"] else None

        found = until(members, 60, "one member with two partitions", pause=0.5)
        same(found[0]["HOST"], "/127.0.0.1", "host")
        text = tool(GROUPS, "--describe", "--group", group, "--state")
        assert re.search(r"\brange\b.*\bStable\b.*\b1$", text, re.M), text
        text = tool(TOOLS + "GroupsCommand", "--list")
        assert group in text, text
        text = tool(GROUPS, "--delete", "--group", group, fails=None)
        assert "not empty" in text.lower(), text
        reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
        text = tool(GROUPS, *reset, "--execute", fails=None)
        assert "can only be reset if the group" in text, text
    finally:
        consumer.terminate()
        consumer.wait(20)


@check
def delete_records_and_get_offsets():
    topic = create("tools-delete-records", 2)
    produce(topic, "".join(f"{i}\n" for i in range(10)), "--batch-size", "1")
    shell = TOOLS + "GetOffsetShell"

    def offsets(when):
        text = tool(shell, "--topic-partitions", f"{topic}:0,{topic}:1", "--time", when)
        found = [line.split(":") for line in text.splitlines() if line.startswith(topic)]
        return {int(p): int(o) for _, p, o in found}

    ends = offsets("-1")
    same(sum(ends.values()), 10, "latest offsets in all")
    same(sum(offsets("earliest").values()), 0, "earliest offsets in all")
    most = max(ends, key=ends.get)
    cut = ends[most] - 1
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        one = {"topic": topic, "partition": most, "offset": cut}
        json.dump({"version": 1, "partitions": [one]}, f)
        f.flush()
        text = tool(TOOLS + "DeleteRecordsCommand", "--offset-json-file", f.name)
    assert f"low_watermark: {cut}" in text, text
    same(offsets("-2")[most], cut, "earliest after")


@check
def log_dirs():
    topic = create("tools-log-dirs", 2)
    produce(topic, "x" * 5000 + "\n")
    text = tool(TOOLS + "LogDirsCommand", "--describe", "--topic-list", topic)
    answer = json.loads(next(l for l in text.splitlines() if l.startswith("{")))
    dirs = answer["brokers"][0]["logDirs"]
    same([d["error"] for d in dirs], [None], "errors")
    sizes = {p["partition"]: p["size"] for d in dirs for p in d["partitions"]}
    same(set(sizes), {f"{topic}-0", f"{topic}-1"}, "partitions")
    assert 5000 <= sum(sizes.values()) < 6000, sizes


@check
def broker_api_versions():
    text = tool(TOOLS + "BrokerApiVersionsCommand")
    for name in ("Produce(0): ", "Fetch(1): ", "ApiVersions(18): "):
        assert name in text, text
    same(re.findall(r"\b(?:Produce|Fetch|Metadata)\(\d+\): UNSUPPORTED", text), [], "unsupported")


@check
def cluster_id():
    # this tool takes its words in another order than all others
    jars = os.path.join(os.environ["CONFORMANCE_JARS"], "*")
    words = ["cluster-id", "--bootstrap-server", BOOTSTRAP]
    line = [*JAVA, "-cp", jars, TOOLS + "ClusterTool", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"Cluster ID: \S+", done.stdout), done.stdout


@check
def no_reassignments():
    text = tool(TOOLS + "reassign.ReassignPartitionsCommand", "--list")
    assert "No partition reassignments found" in text, text


@check
def producer_and_consumer_perf():
    topic = create("tools-perf", 3)
    size = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    props = ("--command-property", "acks=all", "linger.ms=5", "compression.type=lz4")
    text = tool(TOOLS + "ProducerPerformance", "--topic", topic, *size, *props)
    assert "20000 records sent" in text, text
    limits = ("--num-records", "20000", "--timeout", "30000", "--hide-header")
    text = tool(TOOLS + "ConsumerPerformance", "--topic", topic, *limits)
    counts = [line.split(", ") for line in text.splitlines() if ", " in line]
    same(counts[-1][4], "20000", f"records consumed; the tool said {text}")


@check
def verifiable_producer():
    topic = create("tools-verifiable", 2)
    text = tool(TOOLS + "VerifiableProducer", "--topic", topic, "--max-messages", "500")
    found = [json.loads(l) for l in text.splitlines() if l.startswith("{")]
    data = next(r for r in found if r["name"] == "tool_data")
    same((data["sent"], data["acked"]), (500, 500), "sent and acknowledged")


if __name__ == "__main__":
    import tools_transactions  # noqa: F401: registers its check

    main(side_by_side=2)
