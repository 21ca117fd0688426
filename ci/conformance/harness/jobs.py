"""The kinds of job: a client's ordinary checks, and a client whose broker is ended, under load or where the client says."""

import contextlib
import os
import queue
import random
import subprocess
import threading
import time


class Client:
    """A client program whose standard output is read line by line."""

    def __init__(self, name, command, env, log, stdin=False, cwd=None):
        self.name = name
        self.lines = queue.Queue()
        self.log = open(log, "ab")
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            self.lines.put(line.decode(errors="replace"))
        self.lines.put(None)

    def line(self, deadline):
        """The next line; None at the end of the output or past the deadline."""
        try:
            return self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def drained(self, acked):
        """Reads what was said already; returns the last count of acknowledgements, or `acked`."""
        while not self.lines.empty():
            line = self.lines.get()
            if line is None:
                raise RuntimeError(f"{self.name} has ended")
            words = line.split()
            if words[:1] == ["acked"]:
                acked = int(words[1])
        return acked

    def say(self, word):
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def environment(broker, work, installer):
    return {
        **os.environ,
        "CONFORMANCE_TARGET": broker.target,
        "CONFORMANCE_WORK": work,
        "CONFORMANCE_JARS": installer.jars,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@contextlib.contextmanager
def job(name):
    """Gives what starts a client that listens, ends it in any case, and says what failed and how long all took."""
    began = time.monotonic()
    programs = []

    def start(client, command, env, log):
        programs.append(Client(client, command, env, log, stdin=True))
        return programs[-1]

    try:
        yield start
    except Exception as error:
        # The checks that did not report are failed by the list; this says why.
        print(f"---- {name}: {error}", flush=True)
    finally:
        for program in programs:
            program.end()
    print(f"---- {name}: {time.monotonic() - began:.0f} s", flush=True)


def take_rest(program, report, seconds):
    """Reports what the client says until it ends, or until the time is up."""
    deadline = time.monotonic() + seconds
    while (line := program.line(deadline)) is not None:
        report.take(program.name, line)


def ordinary(client, command, broker, report, work, installer, only, limit=420):
    """Runs a client's checks against a broker that stays up."""
    started = time.monotonic()
    log = os.path.join(work, f"{client}.log")
    env = environment(broker, work, installer)
    program = Client(client, [*command, broker.bootstrap, *only], env, log)
    take_rest(program, report, limit)
    program.end()
    print(f"---- {client}: {time.monotonic() - started:.0f} s", flush=True)


def under_load(client, command, mode, rounds, broker, report, work, installer):
    """Ends the broker again and again while the client produces and consumes, then has it verify.

    The client prints `acked N` about twice a second, once its consumer has committed. Each round waits until acknowledgements
    have moved on since the last restart, lets the load run a little, and then strikes, so that
    every round strikes a broker that is really at work.
    """
    log = os.path.join(work, f"{client}-{mode}.log")
    codes = []
    with job(f"{client} {mode}") as start:
        broker.start()
        env = environment(broker, work, installer)
        program = start(client, [*command, broker.bootstrap, mode], env, log)
        acked = wait_for_acks(program, -1)
        for _ in range(rounds):
            acked = wait_for_acks(program, acked + 500)
            time.sleep(random.uniform(0, 0.4))  # not always right after the client has spoken
            if mode == "kill9":
                broker.kill9()
            else:
                codes.append(broker.terminate())
            broker.start()
            acked = program.drained(acked)
        wait_for_acks(program, acked + 500)
        if mode == "sigterm" and broker.target == "highwater":
            clean = codes == [0] * rounds
            report.add(client, "sigterm_exit_code_zero", clean, reason="" if clean else f"{codes}")
        program.say("stop")
        take_rest(program, report, 150)


def restarts(client, command, broker, report, work, installer, limit=480):
    """Kills and restarts the broker wherever the client says `kill9`, and answers `started` then.

    `forget` is the same, but that the coordinators' logs are lost in between.
    """
    with job(f"{client} restarts") as start:
        deadline = time.monotonic() + limit
        broker.start()
        env = environment(broker, work, installer)
        log = os.path.join(work, f"{client}-restarts.log")
        program = start(client, [*command, broker.bootstrap], env, log)
        while (line := program.line(deadline)) is not None:
            if line.strip() in ("kill9", "forget"):
                broker.kill9()
                if line.strip() == "forget":
                    broker.forget_transactions()
                broker.start()
                program.say("started")
            else:
                report.take(client, line)


def streams(client, command, brokers, report, work, installer):
    """Kafka Streams at work while one broker after the other, then two at once, are killed and started again."""
    with job(client) as start:
        for broker in brokers:
            broker.start()
        env = environment(brokers[0], work, installer)
        bootstrap = ",".join(b.bootstrap for b in brokers)
        words = [bootstrap, os.path.join(work, "streams-state")]
        program = start(client, [*command, *words], env, os.path.join(work, f"{client}.log"))
        acked = wait_for_acks(program, 500)
        for victims in [*([b] for b in brokers), brokers[:2]]:
            time.sleep(random.uniform(0, 0.4))
            for broker in victims:
                broker.kill9()
            if len(brokers) > len(victims):
                acked = wait_for_acks(program, program.drained(acked) + 500)  # others have taken over
            for broker in victims:
                broker.start()
            acked = wait_for_acks(program, program.drained(acked) + 500)
        program.say("stop")
        take_rest(program, report, 250)


def wait_for_acks(program, beyond, seconds=90):
    deadline = time.monotonic() + seconds
    while True:
        line = program.line(deadline)
        if line is None:
            raise RuntimeError(f"{program.name}: not {beyond} acknowledged within {seconds} s")
        words = line.split()
        if words[:1] == ["acked"] and int(words[1]) > beyond:
            return int(words[1])
