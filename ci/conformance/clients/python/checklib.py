"""What every Python client's checks share: the register, the runner, and the report lines.

A check is a function without arguments that returns on success and raises on failure. The
runner prints `ok NAME SECONDS` or `not ok NAME SECONDS REASON` for each; `../../harness` reads
those lines. A check that outlasts its limit is reported as failed, and the run goes on.
"""

import concurrent.futures
import os
import sys
import threading
import time
import traceback

CHECKS = {}
BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TARGET = os.environ.get("CONFORMANCE_TARGET", "highwater")
PRINT_LOCK = threading.Lock()


def check(function=None, *, only_on=None, limit=60):
    """Registers a check under its function's name."""

    def register(f):
        if only_on is None or only_on == TARGET:
            CHECKS[f.__name__] = (f, limit)
        return f

    return register if function is None else register(function)


def add_check(name, function, limit=60):
    CHECKS[name] = (function, limit)


def say(line):
    with PRINT_LOCK:
        print(line, flush=True)


def report(name, started, problem=None):
    took = f"{time.monotonic() - started:.2f}"
    if problem is None:
        say(f"ok {name} {took}")
    else:
        reason = " ".join(str(problem).split())[:600]
        say(f"not ok {name} {took} {reason}")


def run_one(name, function, limit):
    """Runs one check on a thread of its own, so that one that hangs can be left behind."""
    started = time.monotonic()
    outcome = []

    def body():
        try:
            function()
            outcome.append(None)
        except BaseException as error:  # whatever a check raises is its verdict
            where = traceback.extract_tb(error.__traceback__)
            here = os.path.dirname(os.path.abspath(__file__))
            own = [f for f in where if f.filename.startswith(here) and f.filename != os.path.abspath(__file__)]
            at = " ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in own)
            outcome.append(f"{type(error).__name__}: {error} ({at})")

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit)
    report(name, started, outcome[0] if outcome else f"no end within {limit} s")


def main(side_by_side=4):
    only = set(sys.argv[2:])
    chosen = {n: c for n, c in CHECKS.items() if not only or n in only}
    with concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
        for done in [pool.submit(run_one, n, f, limit) for n, (f, limit) in chosen.items()]:
            done.result()
    sys.stdout.flush()
    os._exit(0)  # a hung check's thread must not hold the process


def kill9(word="kill9"):
    """Has whoever started this program kill the broker and start it again; `forget`: without what coordinators know."""
    say(word)
    if not sys.stdin.readline():
        raise AssertionError("nobody restarts the broker")


def until(condition, seconds, what, pause=0.05):
    """Waits for `condition()` to be true and returns its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)


def same(got, wanted, what):
    if got != wanted:
        raise AssertionError(f"{what}: got {str(got)[:200]}, wanted {str(wanted)[:200]}")


def payloads(count, size=1000):
    """Compressible values of about `size` bytes, each its own."""
    return [(f"value {i} ".encode() + b"highwater " * (size // 10))[:size] for i in range(count)]


def stored_bytes(topic):
    """How many bytes of log the broker holds for a topic, as DescribeLogDirs tells."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    try:
        total = 0
        answer = admin.describe_log_dirs()
        for size in sizes_of_topic(answer, topic):
            total += size
        return total
    finally:
        admin.close()


def sizes_of_topic(node, topic):
    """Walks the answer, whose nesting differs between releases of the client."""
    if isinstance(node, dict):
        if node.get("topic", node.get("name")) == topic and "partitions" in node:
            for partition in node["partitions"]:
                yield partition.get("partition_size", partition.get("size", 0))
            return
        for value in node.values():
            yield from sizes_of_topic(value, topic)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from sizes_of_topic(value, topic)
