"""Three brokers on one data directory, and what the volume says of them."""

import json
import signal
import subprocess
import time

from harness import brokers

from . import bank

TOPIC = "load"
# With the 8 group slots 28 places: a third of them is more than all slots, so each broker leads some of the topic.
PARTITIONS = 20
LEASE_MS = 4000
NUMBERS = (1, 2, 3)


class Member(brokers.Highwater):
    """One broker of the cluster; all have the same data directory, each perhaps by a path of its own."""

    def __init__(self, number, work, binary, data, metrics=False):
        super().__init__(f"broker-{number}", work, binary)
        self.number = number
        self.data = data
        self.metrics = f"127.0.0.1:{self.metrics_port}" if metrics else "off"

    def command(self):
        settings = (f"broker.lease.ms={LEASE_MS}", f"metrics.listener={self.metrics}")
        command = [self.binary, "serve", "--data", self.data, "--listen", self.bootstrap]
        command += ["--broker-id", str(self.number)]
        return command + [word for s in settings for word in ("--set", s)]

    def spawn(self):
        """Starts the process and does not wait for it."""
        with open(self.log, "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(self.command(), cwd=self.dir, **streams)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


class Cluster:
    """`data` is where this program looks; `ways`, if given, how each broker gets there."""

    def __init__(self, work, binary, data, ways=None, metrics=False):
        self.binary, self.data = binary, data
        ways = ways or {n: data for n in NUMBERS}
        self.members = {n: Member(n, work, binary, way, metrics) for n, way in ways.items()}

    @property
    def bootstrap(self):
        return ",".join(m.bootstrap for m in self.members.values())

    def start(self):
        for member in self.members.values():
            member.start()
        self.settled(30)

    def stop(self, seconds=10):
        """Ends what still runs, by its process id; what does not go is killed."""
        running = [m for m in self.members.values() if m.alive()]
        for member in running:
            member.resume()  # a stopped process takes no SIGTERM
            member.process.terminate()
        end = time.monotonic() + seconds
        for member in running:
            try:
                member.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill9()

    def status(self):
        command = [self.binary, "cluster", "status", "--data", self.data, "--json", "--partitions"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"cluster status: exit code {done.returncode}: {done.stderr[-400:]}")
        return json.loads(done.stdout)

    def ask(self, python, script, *words):
        """Runs a few lines with confluent-kafka's AdminClient, which this Python may lack."""
        head = "import sys; from confluent_kafka.admin import AdminClient, NewTopic\n"
        head += "admin = AdminClient({'bootstrap.servers': sys.argv[1]})\n"
        command = [python, "-c", head + script, *words]
        return subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout

    def create_topics(self, python):
        """Through the first broker, whoever the controller is."""
        script = "admin.create_topics([NewTopic(sys.argv[2], int(sys.argv[3]), 1)])[sys.argv[2]].result(30)"
        for topic, partitions in ((TOPIC, PARTITIONS), (bank.BANK, bank.ACCOUNTS), (bank.LEDGER, bank.BOOKS)):
            self.ask(python, script, self.members[1].bootstrap, topic, str(partitions))
        self.settled(30)

    def coordinator(self, python, group):
        """The number of the broker that leads the group now."""
        script = "print(admin.describe_consumer_groups([sys.argv[2]])[sys.argv[2]].result(30).coordinator.id)"
        return int(self.ask(python, script, self.bootstrap, group))

    def settled(self, seconds):
        """Waits until all is well and every broker has its share; returns the status."""
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            problem = self.unsettled(status)
            if problem is None:
                return status
            if time.monotonic() > end:
                raise Unsettled(f"not within {seconds} s: {problem}")
            time.sleep(0.3)

    def unsettled(self, status):
        alive = {b["broker"] for b in status["brokers"] if b["standing"] == "alive"}
        missing = [n for n, m in self.members.items() if m.alive() and n not in alive]
        if missing:
            return f"brokers {missing} are not known to live"
        if not status["well"]:
            ill = [p for p in status["places"] if p["state"] != "led"]
            return f"not well: states {status['states']}, {json.dumps(ill[:2])}, notes {status['notes'][:2]}"
        if status["topics"]:
            idle = [n for n, m in self.members.items() if m.alive() and not led_in(status).get(n)]
            if idle:
                return f"brokers {idle} lead nothing of the topic"
        return None


class Unsettled(Exception):
    pass


def led_in(status):
    """broker -> partitions of the topic that it leads, by the volume."""
    found = {}
    for place in status["places"]:
        if place.get("topic") == TOPIC and place["state"] == "led" and place["assigned"]:
            found.setdefault(place["assigned"]["broker"], []).append(place["partition"])
    return found


def controller_in(status):
    holder = (status.get("controller") or {}).get("holder")
    return holder["broker"] if holder else None
