"""What the checks of Kafka's command-line tools share: how a tool is run, and its tables read."""

import os
import subprocess
from contextlib import closing

from checklib import BOOTSTRAP

QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
JAVA = ["java", "-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", QUIET]
TOOLS = "org.apache.kafka.tools."
GROUPS = f"{TOOLS}consumer.group.ConsumerGroupCommand"


def command(main_class, *args):
    jars = os.path.join(os.environ["CONFORMANCE_JARS"], "*")
    return [*JAVA, "-cp", jars, main_class, "--bootstrap-server", BOOTSTRAP, *args]


def tool(main_class, *args, given=None, fails=False, seconds=60, errors=True):
    """Runs a tool; returns what it wrote, warnings about logging aside.

    `fails=None`: the exit code does not matter. `errors=False`: standard output only.
    """
    done = subprocess.run(
        command(main_class, *args),
        input=given,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    lines = done.stdout.splitlines()
    if errors or done.returncode:
        lines += done.stderr.splitlines()
    text = "\n".join(line for line in lines if not line.startswith("SLF4J"))
    if fails is not None and (done.returncode != 0) != fails:
        raise AssertionError(f"{' '.join(args)}: exit code {done.returncode}: {text[-500:]}")
    return text


def admin():
    from kafka import KafkaAdminClient

    return closing(KafkaAdminClient(bootstrap_servers=BOOTSTRAP))


def create(name, partitions=1):
    """Makes a topic without the tool, which has checks of its own: each run of it costs a VM."""
    with admin() as a:
        a.create_topics({name: {"num_partitions": partitions}}, wait_for_metadata=True)
    return name


def rows(text, columns):
    """The rows of a table that a tool printed, as dictionaries by the header's words."""
    lines = [l.split() for l in text.splitlines() if l.strip()]
    header = next(i for i, l in enumerate(lines) if set(columns) <= set(l))
    return [dict(zip(lines[header], l)) for l in lines[header + 1 :] if len(l) >= len(columns)]


def broker_id():
    with admin() as a:
        return str(a.describe_cluster()["brokers"][0]["broker_id"])
