"""The brokers under test: Highwater, or Apache Kafka as the reference for the checks themselves.

Both listen on loopback, keep their data in a directory of their own, and are ended by their
process id. A restart uses the same data and the same port.
"""

import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import time

PORTS = range(21000, 22000)  # below the ephemeral range: no outgoing connection takes one
_taken = set()


def free_port():
    for port in random.sample(PORTS, len(PORTS)):
        if port in _taken:
            continue
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        _taken.add(port)
        return port
    raise RuntimeError(f"no free port in {PORTS}")


class Broker:
    """One broker process. `start` returns once it answers a metadata request."""

    def __init__(self, name, work):
        self.name = name
        self.dir = os.path.join(work, name)
        self.data = os.path.join(self.dir, "data")
        self.log = os.path.join(self.dir, "broker.log")
        self.port = free_port()
        self.process = None
        os.makedirs(self.dir, exist_ok=True)

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    def command(self):
        raise NotImplementedError

    def start(self, seconds=60):
        # Highwater takes settings from HIGHWATER_… variables; those of the caller are not meant for it.
        env = {k: v for k, v in os.environ.items() if not k.startswith("HIGHWATER_")}
        streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, cwd=self.dir, env=env, **streams
            )
        end = time.monotonic() + seconds
        while not self.answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}\n{self.tail()}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not answer within {seconds} s\n{self.tail()}")
            time.sleep(0.05)

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        ask = ["kcat", "-b", self.bootstrap, "-L", "-m", "5"]
        return subprocess.run(ask, capture_output=True, timeout=20).returncode == 0

    def tail(self, size=3000):
        with open(self.log, "rb") as log:
            return log.read()[-size:].decode(errors="replace")

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds=40):
        """SIGTERM; returns the exit code, or None if it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            return None

    def forget_transactions(self):
        """Between two lives: the coordinators' logs are lost, those of the topics are not."""
        for path in glob.glob(os.path.join(self.data, self.coordinators)):
            shutil.rmtree(path)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        if self.alive():
            self.terminate()


class Highwater(Broker):
    target = "highwater"
    coordinators = "__cluster/groups/*"

    def __init__(self, name, work, binary, settings=()):
        super().__init__(name, work)
        self.binary, self.settings = binary, settings
        self.metrics_port = free_port()

    def command(self):
        return [
            self.binary,
            "serve",
            "--data",
            self.data,
            "--listen",
            self.bootstrap,
            "--set",
            f"metrics.listener=127.0.0.1:{self.metrics_port}",
            "--set",
            "auto.create.topics.enable=true",
            *self.settings,
        ]


class HighwaterMember(Highwater):
    """One of several brokers on one directory, with a lease so short that its successor soon serves."""

    def __init__(self, number, work, binary, data):
        settings = ["--broker-id", str(number), "--set", "broker.lease.ms=4000"]
        super().__init__(f"member-{number}", work, binary, settings)
        self.data = data


class ApacheKafka(Broker):
    """A single KRaft node from Maven's jars."""

    target = "kafka"
    coordinators = "__transaction_state-*"

    def __init__(self, name, work, jars):
        super().__init__(name, work)
        self.java = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-cp", os.path.join(jars, "*")]
        self.config = os.path.join(self.dir, "server.properties")
        controller = free_port()
        with open(self.config, "w") as f:
            f.write(
                f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{self.bootstrap}
controller.listener.names=CONTROLLER
log.dirs={self.data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
            )
        format_it = ["kafka.tools.StorageTool", "format", "-t", "VFgokxG7SKaPZ1d7T64OXg"]
        subprocess.run(
            [*self.java, *format_it, "-c", self.config], check=True, capture_output=True
        )

    def command(self):
        return [*self.java, "kafka.Kafka", self.config]
