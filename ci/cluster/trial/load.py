"""The clients under load: the two programs, started, stopped in step, and watched."""

import json
import os
import subprocess
import time

from harness import jobs

from . import bank, history
from .members import PARTITIONS, TOPIC

PRODUCERS = ("python-idempotent", "python-plain", "java-idempotent", "java-plain")
MEMBERS = ("python-member", "java-member")
GROUP = "load-group"


class Script:
    """The history of what the script itself did."""

    def __init__(self, folder):
        self.file = open(os.path.join(folder, "script.jsonl"), "w", buffering=1)
        self.put("open", client="script", role="script")
        self.faults = 0

    def put(self, event, t=None, **fields):
        t = round(time.monotonic() if t is None else t, 4)
        self.file.write(json.dumps({"t": t, "e": event, **fields}) + "\n")
        return t

    def fault(self, cause, of, partitions):
        self.faults += 1
        self.put("fault", id=self.faults, cause=cause, of=of, partitions=sorted(partitions))
        return self.faults

    def fault_end(self, number):
        self.put("fault_end", id=number)


class Load:
    """The programs of the ordinary load, and beside them the bank's."""

    def __init__(self, folder, work, commands, bank_commands, bootstrap, env):
        self.folder = folder
        words = [bootstrap, TOPIC, str(PARTITIONS), GROUP, folder]
        self.programs = [
            jobs.Client(name, [*command, *words], env, os.path.join(work, f"{name}.log"), stdin=True)
            for name, command in commands.items()
        ]
        self.bank = bank.Bank(os.path.join(folder, "bank"), work, bank_commands, bootstrap, env)
        self.programs += self.bank.programs
        self.tail = history.Tail(folder, PRODUCERS, MEMBERS)

    def begun(self, seconds=60):
        """Waits until every producer was acknowledged something in earnest."""
        end = time.monotonic() + seconds
        while True:
            self.tail.refresh()
            slow = [n for n, count in self.tail.acked.items() if count < 5 * PARTITIONS]
            if not slow and all(self.bank.refresh().values()):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"within {seconds} s hardly anything was acknowledged to {slow}, or {self.bank.committed}")
            time.sleep(0.2)

    def accepted(self, partitions, since, seconds):
        """Waits until each partition acknowledged something sent after `since`; whether it did."""
        return self.wait(lambda: self.tail.all_since(partitions, since), seconds)

    def group_moves(self, partitions, since, seconds):
        """Waits until the group committed for each partition after `since`; whether it did."""
        return self.wait(lambda: self.tail.committed_since(partitions, since), seconds)

    @staticmethod
    def wait(condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def stop(self):
        """Stops the producers, then lets the consumers read to the ends; returns what went wrong."""
        problems = []
        for word, seconds in (("produced", 150), ("done", 130)):
            for program in self.programs:
                try:
                    program.say("stop")
                except OSError:
                    pass  # it has ended; the next line tells
            end = time.monotonic() + seconds
            for program in self.programs:
                if not self.said(program, word, end):
                    problems.append(f"{program.name} did not say {word} within {seconds} s")
        return problems

    @staticmethod
    def said(program, word, end):
        while (line := program.line(end)) is not None:
            if line.strip() == word:
                return True
        return False

    def end(self):
        for program in self.programs:
            program.end()


def read_back(python, script, bootstrap, folder, work, env):
    """The fresh reader: everything from the start, and the group's offsets."""
    command = [python, script, "final", bootstrap, TOPIC, str(PARTITIONS), GROUP, folder]
    with open(os.path.join(work, "final.log"), "w") as log:
        done = subprocess.run(command, env=env, stdout=log, stderr=log, timeout=150)
    return None if done.returncode == 0 else f"the final reader ended with {done.returncode}"
