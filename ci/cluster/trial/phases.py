"""What is done to the cluster, one function a phase. Each begins and ends with a cluster that is well.

A phase notes its faults in the script's history; the checker and the table of failover times read
them there. What a client's history cannot show (an exit code, a broker that does not come back) is
a problem, told at once and again at the end.
"""

import random
import time

from . import members
from .load import GROUP
from .members import LEASE_MS, PARTITIONS

LEASE = LEASE_MS / 1000
EVERY = range(PARTITIONS)

# Cause: seconds that a partition may take no writes; None: shown only.
BOUNDS = {
    "kill -9": LEASE + 3,
    "kill -9 of two": LEASE + 3,
    "SIGSTOP, 15 s": LEASE + 5,
    "SIGSTOP, 45 s": LEASE + 5,
    "SIGTERM": 2.0,
    "rolling restart": 2.0,
    "space after full volume": LEASE + 5,
    # The last broker may have been killed or stopped at the storm's end: its lease has to run out.
    "storm": LEASE + 5,
    "SIGCONT": None,
    "return of a broker": None,
}
STORM = 25
# A member's session (10 s), twice: it may have to find the new coordinator first, and its old name to lapse.
GROUP_BACK = 30
BACK = 30  # seconds for all to be well again: shares of leaders move at a limited rate


class Trial:
    bounds = BOUNDS

    def __init__(self, cluster, load, script, volume, python):
        self.cluster, self.load, self.script, self.volume = cluster, load, script, volume
        self.python = python
        self.leaving, self.away = set(), set()
        self.last = None  # the status from before the fault
        self.problems = []
        self.notes = []
        self.zero = time.monotonic()

    def say(self, text):
        print(f"{time.monotonic() - self.zero:6.1f} s  {text}", flush=True)

    def problem(self, text):
        self.problems.append(text)
        self.say(f"PROBLEM: {text}")

    # -- what the phases have in common

    def settled(self, after):
        """The status once all is well; without it the phases that follow would mean nothing."""
        started = time.monotonic()
        status = self.cluster.settled(BACK)
        took = time.monotonic() - started
        if took > 5:
            self.say(f"all well {took:.1f} s after {after}")
        return status

    def victim(self, who):
        """A broker by its office, and what it leads; the offices are looked up anew."""
        self.last = self.settled("the phase before")
        led, controller = members.led_in(self.last), members.controller_in(self.last)
        number = controller
        if who == "coordinator":
            number = self.cluster.coordinator(self.python, GROUP)
        elif who == "other":
            number = max((n for n in sorted(led) if n != controller), key=lambda n: len(led[n]))
        return self.cluster.members[number], led[number]

    def strike(self, cause, member, led, act):
        """Notes the fault, does it, and waits until each partition is served again."""
        office = ", the controller," if members.controller_in(self.last) == member.number else ""
        self.say(f"{cause}: {member.name}{office} leads {led}")
        time.sleep(random.uniform(0, 1))  # anywhere between two heartbeats
        fault = self.script.fault(cause, member.name, led)
        act()
        struck = time.monotonic()
        bound = self.bounds[cause] or BACK
        if not self.load.accepted(led, struck, bound + 10):
            self.problem(f"{cause} of {member.name}: no writes on all of {led} within {bound + 10:.0f} s")
        self.script.fault_end(fault)

    def comes_back(self, member, cause, act):
        """Has the broker back, and watches all partitions while leaders move to it."""
        fault = self.script.fault(cause, member.name, EVERY)
        act()
        back = time.monotonic()
        self.last = self.settled(f"the {cause}")
        self.load.accepted(EVERY, time.monotonic(), 10)
        self.script.fault_end(fault)
        self.group_moves(f"the {cause}", back)

    def group_moves(self, after, since):
        if not self.load.group_moves(EVERY, since, GROUP_BACK):
            self.problem(f"{GROUP_BACK} s after {after} the group had not committed anew for all partitions")
        elif (took := time.monotonic() - since) > 5:
            self.say(f"the group commits for all partitions again {took:.1f} s after {after}")

    def restore(self):
        """Gives the brokers back a sound volume."""
        self.volume.free()

    # -- the phases

    def kill(self):
        for who in ("controller", "coordinator", "other"):
            member, led = self.victim(who)
            self.strike("kill -9", member, led, member.kill9)
            time.sleep(2)
            self.comes_back(member, "return of a broker", member.start)

    def kill_two(self):
        first, led = self.victim("controller")
        shares = members.led_in(self.last)
        second = self.cluster.members[max((n for n in shares if n != first.number), key=lambda n: len(shares[n]))]

        def both():
            first.kill9()
            second.kill9()

        self.strike("kill -9 of two", first, sorted(led + shares[second.number]), both)
        time.sleep(2)
        self.comes_back(first, "return of a broker", first.start)
        self.comes_back(second, "return of a broker", second.start)

    def pause(self, seconds, who):
        member, led = self.victim(who)
        stopped = time.monotonic()
        self.strike(f"SIGSTOP, {seconds} s", member, led, member.pause)
        time.sleep(max(0.0, stopped + seconds - time.monotonic()))
        self.comes_back(member, "SIGCONT", member.resume)

    def pause15(self):
        self.pause(15, "controller")

    def pause45(self):
        self.pause(45, "coordinator")

    def terminate(self, member):
        started = time.monotonic()
        code = member.terminate()
        self.say(f"{member.name} ended after {time.monotonic() - started:.1f} s")
        if code != 0:
            self.problem(f"{member.name}, SIGTERM: exit code {code}")

    def term(self):
        for who in ("controller", "coordinator", "other"):
            member, led = self.victim(who)
            self.strike("SIGTERM", member, led, lambda m=member: self.terminate(m))
            time.sleep(2)
            self.comes_back(member, "return of a broker", member.start)

    def rolling(self):
        for member in self.cluster.members.values():
            self.last = self.settled("the broker before")
            led = members.led_in(self.last)[member.number]
            self.strike("rolling restart", member, led, lambda m=member: self.terminate(m))
            self.comes_back(member, "return of a broker", member.start)

    def storm(self):
        """Signals without order or patience; what is judged is that all comes back, and the histories."""
        self.last = self.settled("the phase before")
        crew = list(self.cluster.members.values())
        end = time.monotonic() + STORM
        done = []
        self.away = set()  # who is stopped, or going
        self.leaving = set()  # who was sent a SIGTERM and has not been started since
        while time.monotonic() < end:
            time.sleep(random.uniform(0.2, 3))
            member = random.choice(crew)
            done.append(self.whim(member))
        self.say(f"storm: {' '.join(done)}")
        fault = self.script.fault("storm", "all", EVERY)
        for member in crew:
            if member.alive():
                member.resume()
                if member.number in self.leaving:
                    member.process.wait(20)  # it takes its SIGTERM only now, if it was stopped
            if not member.alive():
                member.start()
        calm = time.monotonic()
        if not self.load.accepted(EVERY, calm, BACK):
            self.problem(f"no writes on all partitions {BACK} s after the storm")
        self.script.fault_end(fault)
        self.last = self.settled("the storm")
        self.group_moves("the storm", calm)

    def whim(self, member):
        """Something else than what the broker expects; returns what was done."""
        if not member.alive():
            self.leaving.discard(member.number)
            self.away.discard(member.number)
            member.spawn()
            # Only one that answers counts as there.
            self.load.wait(member.answers, 5)
            return f"start-{member.number}"
        others = [m for m in self.cluster.members.values() if m is not member]
        if not any(m.alive() and m.number not in self.away for m in others):
            # One is left to the clients: librdkafka 2.16 may lock itself up for good when it reaches none at all.
            member.resume()
            self.away -= {member.number} - self.leaving
            return f"cont-{member.number}"
        acts = {"kill": member.kill9, "stop": member.pause, "cont": member.resume, "term": member.process.terminate}
        word = random.choice(sorted(acts))
        self.script.put("whim", what=word, of=member.name)
        acts[word]()
        if word == "term":
            self.leaving.add(member.number)
        if word == "cont":
            self.away -= {member.number} - self.leaving
        else:
            self.away.add(member.number)
        return f"{word}-{member.number}"

    def full(self):
        if self.volume.why_not:
            self.notes.append(f"THE VOLUME WAS NOT FILLED: {self.volume.why_not}. This part was left out.")
            self.say(self.notes[-1])
            return
        self.last = self.settled("the phase before")
        began = self.script.put("full")
        size = self.volume.fill()
        self.say(f"the volume is full: {size >> 20} MiB taken")
        time.sleep(4)
        before = sum(self.counted())
        time.sleep(8)
        after = sum(self.counted())
        self.notes.append(f"while the volume was full, {after - before} records were acknowledged in 8 s")
        self.say(self.notes[-1])
        cause = "space after full volume"
        fault = self.script.fault(cause, "the volume", EVERY)
        self.volume.free()
        freed = time.monotonic()
        if not self.load.accepted(EVERY, freed, BOUNDS[cause] + 10):
            self.problem(f"no writes on all partitions {BOUNDS[cause] + 10:.0f} s after there was space again")
        self.script.fault_end(fault)
        self.script.put("full_end", began=began)
        dead = [m.name for m in self.cluster.members.values() if not m.alive()]
        if dead:
            self.problem(f"the full volume ended {dead}")
        self.last = self.settled("there was space again")
        self.group_moves("there was space again", freed)

    def counted(self):
        self.load.tail.refresh()
        return self.load.tail.acked.values()


# Name: what does it, and about how long it takes in seconds.
PHASES = {
    "kill": (Trial.kill, 45),
    "kill2": (Trial.kill_two, 25),
    "pause15": (Trial.pause15, 25),
    "pause45": (Trial.pause45, 55),
    "term": (Trial.term, 35),
    "rolling": (Trial.rolling, 40),
    "storm": (Trial.storm, 50),
    "full": (Trial.full, 30),
}
