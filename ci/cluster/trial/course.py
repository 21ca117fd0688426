"""One trial from the start of its brokers to the verdict: a cluster, the load, phases, and what is made of it."""

import os
import subprocess
import time

from . import bank, checker, failover, history, load, members

CLOSING = 75  # seconds kept for reading everything back and judging it
# A transaction's timeout (20 s) and then some: what a teller left open may have to lapse before it goes on.
BANK_BACK = 30
# A coordinator that goes away orderly, or is slow, is no reason for the group to share its partitions out anew.
NO_REBALANCE = ("term", "rolling", "fuse-slow")


class Course:
    """What a run's trials have in common."""

    def __init__(self, binary, commands, bank_commands, python, volume, only):
        self.binary, self.commands, self.bank_commands, self.python = binary, commands, bank_commands, python
        self.volume, self.only = volume, only
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def play(self, cluster, make, table, folder, work, end, closing=CLOSING):
        """Whether all held. `make` gives the trial of a running cluster; `table` has its phases. No phase runs into
        the last `closing` seconds before the end."""
        os.makedirs(folder)
        running = None
        try:
            cluster.start()
            cluster.create_topics(self.python)
            script = load.Script(folder)
            running = load.Load(folder, work, self.commands, self.bank_commands, cluster.bootstrap, self.env)
            running.begun()
            if not running.group_moves(range(members.PARTITIONS), 0, 60):
                raise RuntimeError("the group did not form within 60 s")
            trial = make(cluster, running, script, self.volume, self.python)
            do_phases(trial, table, [name for name in self.only if name in table], end - closing)
            time.sleep(2)
            for problem in running.stop():
                trial.problem(problem)
            reader = self.commands["python"][1]
            for problem in (
                load.read_back(self.python, reader, cluster.bootstrap, folder, work, self.env),
                running.bank.read_back(),
            ):
                if problem:
                    trial.problem(problem)
            close_brokers(trial)
            return judge(folder, trial.bounds, trial.problems, trial.notes)
        finally:
            if running is not None:
                running.end()
            cluster.stop()


def do_phases(trial, table, names, end):
    for name in names:
        act, seconds = table[name]
        if time.monotonic() + seconds > end:
            trial.problem(f"phase {name} was left out: its {seconds} s do not fit into the rest of the time")
            continue
        trial.script.put("phase", name=name)
        try:
            act(trial)
        except (members.Unsettled, RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            trial.problem(f"phase {name}: {error}")
            restore(trial)
        still = trial.load.bank.moves(BANK_BACK)
        if still:
            trial.problem(f"phase {name}: {BANK_BACK} s after its end {still} committed nothing")
        trial.script.put("phase_end", name=name)


def restore(trial):
    """After a phase that broke off: nothing spoiled, stopped or dead may be left over."""
    try:
        trial.restore()
    except (RuntimeError, OSError) as error:
        trial.problem(str(error))
    for member in trial.cluster.members.values():
        try:
            if member.alive():
                member.resume()
            else:
                member.start()
        except RuntimeError as error:
            trial.problem(str(error))


def close_brokers(trial):
    """SIGTERM to all, and what the volume and the logs show then."""
    for member in trial.cluster.members.values():
        if member.alive():
            code = member.terminate()
            if code != 0:
                trial.problem(f"{member.name} at the end: exit code {code}")
        else:
            trial.problem(f"{member.name} was not running at the end")
        with open(member.log, errors="replace") as log:
            panics = [line.strip() for line in log if "panicked" in line]
        if panics:
            trial.problem(f"{member.name} panicked {len(panics)} times: {panics[0][:300]}")
    done = subprocess.run([trial.cluster.binary, "verify", trial.cluster.data], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        trial.problem(f"highwater verify: exit code {done.returncode}: {(done.stdout + done.stderr)[-600:]}")


def judge(folder, bounds, problems, notes):
    """Prints the table and the verdict; true if all held."""
    histories = history.load(folder)
    script = histories.get("script", [])
    began = [e for e in script if e["e"] == "full"]
    excused = [(e["t"], next((x["t"] for x in script if x.get("began") == e["t"]), float("inf"))) for e in began]
    verdict = checker.check(histories, excused)
    causes = failover.by_cause(histories, script, bounds)

    print("\nno writes accepted: from the fault to the first acknowledged record, per partition led")
    print(f"{'cause':<26} {'faults':>6} {'partitions':>10} {'p50':>9} {'max':>9} {'bound':>9}")
    for name, cause in causes.items():
        if cause.faults:
            print(cause.row(name))
    print("\nchecked")
    for what, count in sorted(verdict.counts.items()):
        print(f"{count:9d}  {what}")
    for name, count in rebalances(histories, script).items():
        print(f"{count:9d}  assignments of group members in phase {name}")
        if count and name in NO_REBALANCE:
            problems.append(f"phase {name}: what was done to the coordinator cost the group {count} assignments")
    print("\nfound")
    for kind in checker.ANOMALIES:
        texts = verdict.anomalies[kind]
        print(f"{len(texts):9d}  {kind}")
        for text in texts[:5]:
            print(f"           {text[:300]}")
    over = [text for cause in causes.values() for text in cause.over]
    for text in over:
        print(f"TOO LONG: {text}")
    for text in problems:
        print(f"PROBLEM: {text}")
    for text in notes:
        print(f"NOTE: {text}")
    good = bank.judge(os.path.join(folder, "bank")) and verdict.holds and not over and not problems
    print(f"\n{'all held' if good else 'NOT ALL HELD'}", flush=True)
    return good


def rebalances(histories, script):
    """How often group members were given partitions, by phase."""
    given = [
        e["t"]
        for events in histories.values()
        if events and events[0].get("role") == "member"
        for e in events
        if e["e"] == "assigned"
    ]
    found, start = {}, None
    for e in script:
        if e["e"] == "phase":
            start = e["t"]
        elif e["e"] == "phase_end":
            found[e["name"]] = sum(1 for t in given if start <= t <= e["t"])
    return found
