"""What is done to one broker's way to the volume, one function a phase, while the others' is sound.

The cluster is one of its own, each broker on a mount of its own (`beds.py`). As in `phases.py`, each phase
begins and ends with a cluster that is well. A fault that hit no operation is a problem: the phase would
have shown nothing.
"""

import random
import subprocess
import time

from . import members, phases
from .members import TOPIC
from .phases import EVERY, LEASE

WATCHDOG = 30  # storage.sync.timeout.ms, as it comes
# P11 allows a second; the rest is for the script's own look at the metrics.
STALL = 45
HANG = 12
# Seconds from the watchdog on until others take writes for what a living broker cannot write: a client's request waits for
# the watchdog, and for its own pause before it asks who leads.
MOVES = 10
SLOW = 8
FAIL = 5
STORM = 60
CLOSING = 45  # as in `course.py`: its load is shorter
# The data of partitions and of groups. A broker's heartbeat, claims and manifests are files of other names.
DATA = "sync .log"

BOUNDS = {
    "each sync takes 200 ms": 2.0,
    "others' syncs are stalled": 2.0,
    "stalled syncs go on": LEASE + 5,
    "the volume hangs for one": LEASE + 5,
    "the volume answers again": None,
    "one sync fails": LEASE + 5,
    "syncs fail no more": LEASE + 5,
    "faults without order": LEASE + 5,
}
# What a storm may choose from: each operation that a broker needs, alone or with its like, and each of its files.
OPS = ("*", "sync", "write", "read", "open,lookup,stat", "create", "rename", "unlink", "syncdir,readdir")
PATHS = ("*", ".log", "/groups/", "/brokers/", "/controller/", "/metadata/", "claim", "manifest", "checkpoint", "snapshot")


class FuseCluster(members.Cluster):
    def __init__(self, work, binary, beds):
        # This program looks at the backing directory itself, whatever happens to the brokers' mounts.
        super().__init__(work, binary, beds.backing_of("data"), beds.to("data"), metrics=True)
        self.beds = beds

    def stop(self, seconds=10):
        self.beds.release()
        super().stop(seconds)


class FuseTrial(phases.Trial):
    bounds = BOUNDS

    # -- what the phases have in common

    def spoil(self, member, *rules):
        bed = self.cluster.beds.all[member.number]
        for rule in rules:
            bed.rule(rule)
        self.script.put("spoil", of=member.name, rules=rules)

    def mend(self, member):
        """Ends the faults of a broker's mount; returns how many operations they hit."""
        hits, stalled = self.cluster.beds.all[member.number].clear()
        self.script.put("mend", of=member.name, hits=hits, stalled=stalled)
        self.say(f"{member.name}: {hits} operations were hit, {stalled} of them were stalled still")
        if hits == 0:
            self.problem(f"the faults on the mount of {member.name} hit nothing")
        return hits

    def restore(self):
        self.cluster.beds.release()

    def served(self, cause, of, partitions, act):
        """Does it, and waits until all of these partitions take writes that were sent after it."""
        fault = self.script.fault(cause, of, partitions)
        act()
        since, bound = time.monotonic(), self.bounds[cause]
        if not self.load.accepted(partitions, since, bound + 10):
            self.problem(f"{cause}: no writes on all of {partitions} within {bound + 10:.0f} s")
        self.script.fault_end(fault)

    def well_again(self, member, after, since):
        """To be called once the faults are over."""
        if not member.alive():
            self.problem(f"{member.name} ended with {member.process.returncode}")
        self.last = self.settled(after)
        self.group_moves(after, since)

    # -- the phases

    def slow(self):
        """A slow broker is not a dead one: it keeps what it leads."""
        member, led = self.victim("coordinator")
        self.say(f"each sync of {member.name} takes 200 ms more, it leads {led}")

        def a_while():
            self.spoil(member, f"delay 200 {DATA}")
            time.sleep(SLOW)

        self.served("each sync takes 200 ms", member.name, led, a_while)
        self.mend(member)
        self.well_again(member, "the slow syncs", time.monotonic())
        if (now := members.led_in(self.last).get(member.number)) != led:
            self.problem(f"{member.name} was slow for {SLOW} s: it led {led} and leads {now}")

    def stuck(self):
        """Past the watchdog others lead what is stuck; nobody else is harmed, and what comes back late does no harm."""
        member, led = self.victim("controller")
        others = sorted(set(EVERY) - set(led))
        self.say(f"the syncs of {member.name}, the controller, are stalled for {STALL} s, it leads {led}")
        beside = self.script.fault("others' syncs are stalled", member.name, others)
        self.spoil(member, f"stall {DATA}")
        began = time.monotonic()
        self.led_elsewhere(member, led, began + WATCHDOG)
        self.can_be_read(member, led[0])
        time.sleep(max(0.0, began + STALL - time.monotonic()))
        if not self.load.accepted(others, time.monotonic(), 5):
            self.problem(f"while the syncs of {member.name} were stalled, not all of {others} took writes")
        self.script.fault_end(beside)
        again = time.monotonic()
        self.served("stalled syncs go on", member.name, led, lambda: self.mend(member))
        self.well_again(member, "the stalled syncs", again)

    def led_elsewhere(self, member, led, after):
        """Others lead what the broker cannot write any more, though its lease stands."""
        limit = after + MOVES - time.monotonic()
        acks = self.load.tail.last_ack
        if self.load.accepted(led, after, limit):
            took = max(acks[p] for p in led) - after
            self.notes.append(f"all {len(led)} partitions with stalled syncs were led by others {took:.1f} s after the watchdog")
            self.say(self.notes[-1])
        else:
            left = [p for p in led if acks.get(p, 0) <= after]
            self.problem(f"{MOVES} s after the watchdog nobody took writes for {left} of {led}, which {member.name} led")

    def can_be_read(self, member, partition):
        command = ["kcat", "-C", "-b", member.bootstrap, "-t", TOPIC, "-p", str(partition)]
        # Not to the end: it moves.
        command += ["-o", "beginning", "-c", "100", "-q", "-f", "%o\n"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except subprocess.TimeoutExpired:
            self.problem(f"partition {partition}, whose syncs are stalled, was not read within 10 s")
            return
        if done.returncode != 0 or not done.stdout:
            self.problem(f"partition {partition}, whose syncs are stalled, could not be read: {done.stderr[-200:]}")

    def hung(self):
        """The whole volume, heartbeats too, for longer than the lease: others take over."""
        member, led = self.victim("controller")
        began = time.monotonic()
        self.strike("the volume hangs for one", member, led, lambda: self.spoil(member, "stall * *"))
        time.sleep(max(0.0, began + HANG - time.monotonic()))
        self.comes_back(member, "the volume answers again", lambda: self.mend(member))
        if not member.alive():
            self.problem(f"{member.name} ended with {member.process.returncode}")

    def failing(self):
        """EIO: once, then for a while. What failed is not used again, and all goes on under new epochs."""
        member, led = self.victim("other")

        def once():
            self.spoil(member, f"fail {DATA} 1")
            time.sleep(1)

        self.say(f"syncs of {member.name} fail, once and then for {FAIL} s, it leads {led}")
        self.served("one sync fails", member.name, led, once)
        self.mend(member)
        self.last = self.settled("the failed sync")
        led = members.led_in(self.last)[member.number]
        self.spoil(member, f"fail {DATA}")
        time.sleep(FAIL)
        again = time.monotonic()
        self.served("syncs fail no more", member.name, led, lambda: self.mend(member))
        self.well_again(member, "the failed syncs", again)


    def storm(self):
        """Rules at random on mounts at random, one mount at least is sound. Judged as the storm of signals is."""
        seed = random.randrange(1 << 32)
        rng = random.Random(seed)
        self.say(f"a storm of faults, seed {seed}")
        self.last = self.settled("the phase before")
        end = time.monotonic() + STORM
        spoiled = set()
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.2, 4))
            member = rng.choice(list(self.cluster.members.values()))
            if member in spoiled:
                self.cluster.beds.all[member.number].clear()
                spoiled.discard(member)
                self.script.put("mend", of=member.name)
            elif len(spoiled) + 1 < len(self.cluster.members):
                self.spoil(member, *(random_rule(rng) for _ in range(rng.randint(1, 2))))
                spoiled.add(member)
        calm = time.monotonic()
        self.served("faults without order", "all", EVERY, self.cluster.beds.release)
        for member in self.cluster.members.values():
            self.well_again(member, "the storm", calm)


def random_rule(rng):
    action = rng.choice(("stall", "fail", f"delay {rng.randint(20, 1500)}"))
    times = rng.choice(("", "", " 1", " 5"))
    return f"{action} {rng.choice(OPS)} {rng.choice(PATHS)}{times}"



# Name: what does it, and about how long it takes in seconds.
PHASES = {
    "fuse-slow": (FuseTrial.slow, 12),
    "fuse-stuck": (FuseTrial.stuck, 55),
    "fuse-hung": (FuseTrial.hung, 22),
    "fuse-failing": (FuseTrial.failing, 18),
    "fuse-storm": (FuseTrial.storm, STORM + 25),
}
# Not part of a run unless it is named: it takes too long.
EXTRA = ("fuse-storm",)
