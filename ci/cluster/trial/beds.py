"""Each broker's own way to the volume: a mount of one backing directory by `ci/fusebed`.

What goes wrong with one mount is seen by the broker on it and by nobody else. A bed ends when its
standard input does, so that none outlives this program; what it leaves mounted is unmounted here.
"""

import json
import os
import subprocess
import time

from harness import jobs

from .volume import quiet

PATIENCE = 20  # seconds for an answer of a bed on a busy machine


def not_here():
    """Why no bed can be mounted on this machine; None if it is worth to try."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    if os.geteuid() != 0:
        return "only root may mount"
    return None


def build(root):
    """The program; needs nothing but what cargo brings."""
    command = ["cargo", "build", "-p", "highwater-fusebed", "--message-format=json"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "highwater-fusebed":
            return message["executable"]
    raise RuntimeError("cargo built no executable named highwater-fusebed")


class NotMounted(Exception):
    """No mount is allowed here, though there seemed to be all that it takes."""


class Bed:
    NOT_HERE = 3  # the program's exit code

    def __init__(self, name, binary, backing, work):
        self.name = name
        self.path = os.path.join(work, name)
        os.makedirs(self.path)
        self.log = os.path.join(work, f"{name}.log")
        self.program = jobs.Client(name, [binary, backing, self.path], None, self.log, stdin=True)
        if self.answer() == "mounted":
            return
        code = self.program.process.wait(PATIENCE)
        with open(self.log, errors="replace") as log:
            why = log.read()[-400:].strip()
        raise NotMounted(why) if code == self.NOT_HERE else RuntimeError(f"{name} ended with {code}: {why}")

    def answer(self):
        line = self.program.line(time.monotonic() + PATIENCE)
        return None if line is None else line.strip()

    def ask(self, command):
        self.program.say(command)
        answer = self.answer()
        if answer is None or not answer.startswith("ok"):
            raise RuntimeError(f"{self.name}, {command}: {answer}")
        return [int(word) for word in answer.split()[1:]]

    def rule(self, line):
        """From now on; what was under way before goes on as it began."""
        self.ask(line)

    def clear(self):
        """No rule is left, and what was stalled goes on; returns how many operations were hit, and stalled still."""
        hits, stalled = self.ask("clear")
        return hits, stalled

    def close(self):
        """Returns what went wrong, or None."""
        process = self.program.process
        if process.poll() is None:
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
        self.program.end()
        with open("/proc/self/mounts") as mounts:
            left = any(line.split()[1] == self.path for line in mounts)
        return quiet("umount", "-l", self.path) if left else None


class Beds:
    """One bed for each broker."""

    def __init__(self, binary, backing, work, numbers):
        self.all, self.backing = {}, backing
        os.makedirs(backing)
        try:
            for number in numbers:
                self.all[number] = Bed(f"bed-{number}", binary, backing, work)
        except (NotMounted, RuntimeError, OSError):
            self.close()
            raise

    def backing_of(self, name):
        return os.path.join(self.backing, name)

    def to(self, name):
        """The path by which each broker reaches a directory of the volume."""
        return {number: os.path.join(bed.path, name) for number, bed in self.all.items()}

    def release(self):
        """Nothing may be stuck when brokers are to end: a process in a stuck call cannot even be killed."""
        for bed in self.all.values():
            if bed.program.process.poll() is None:
                bed.clear()

    def close(self):
        return [problem for bed in self.all.values() if (problem := bed.close())]
