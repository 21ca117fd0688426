"""The bank in transactions beside the ordinary load: its programs, and a checker of what they wrote down.

What the checker takes as given: that a transfer's legs add up to nothing, that each value is sent once
(`teller:number:account:amount`), and that the histories are truthful. The anomalies, each by the name that it reports:

lost_transfer     a transfer whose commit was acknowledged has a leg that nobody reads
torn              some legs of a transfer are committed, others are not
aborted_visible   a leg of a transfer that was aborted, fenced or given up without a commit was read as committed
zombie_committed  a producer committed though another had taken its transactional id
leg_twice         a leg lies at two offsets
leg_phantom       a leg was read that nobody sent, or in another account's partition
leg_moved         two values were read at one offset
leg_reordered     a teller's transfers lie in one partition in another order than they were made in
leg_skipped       a reader of what is committed jumped over a record that is committed
sum               at some moment of a reader, what it had read of whole transfers did not add up to nothing
ledger_missing    a committed leg was not copied to the ledger
ledger_twice      a committed leg was copied twice
ledger_phantom    the ledger holds what is not committed at the place that it names
hanging           a last stable offset stays below the end of the log though no client is there
bank_incomplete   a client did not come to its end, or there is nothing to judge by
"""

import collections
import os
import subprocess
import time

from harness import jobs

from . import history

BANK, LEDGER = "bank", "ledger"
ACCOUNTS, BOOKS = 6, 3
TELLERS = ("python-teller-1", "python-teller-2", "java-teller-1", "java-teller-2")
ANOMALIES = tuple(line.split()[0] for line in __doc__.split("reports:\n\n")[1].splitlines() if line.strip())
NEVER = ("aborted", "fenced", "dropped")


class Bank:
    """The programs; `folder` is where their histories go."""

    def __init__(self, folder, work, commands, bootstrap, env):
        os.makedirs(folder)
        self.folder, self.bootstrap, self.env, self.work = folder, bootstrap, env, work
        self.reader = commands["python"]
        self.programs = [
            jobs.Client(f"{name}-bank", [*command, bootstrap, folder], env, os.path.join(work, f"{name}-bank.log"), stdin=True)
            for name, command in commands.items()
        ]
        self.at = {name: 0 for name in TELLERS}
        self.committed = {name: 0 for name in TELLERS}

    def refresh(self):
        for name in TELLERS:
            path = os.path.join(self.folder, f"{name}.jsonl")
            if os.path.exists(path):
                with open(path, "rb") as file:
                    file.seek(self.at[name])
                    data = file.read()
                cut = data.rfind(b"\n") + 1
                self.at[name] += cut
                self.committed[name] += data[:cut].count(b'"e":"committed"')
        return dict(self.committed)

    def moves(self, seconds):
        """Which tellers commit nothing within that time."""
        before, end = self.refresh(), time.monotonic() + seconds
        while True:
            now = self.refresh()
            still = [n for n in TELLERS if now[n] == before[n]]
            if not still or time.monotonic() > end:
                return still
            time.sleep(0.1)

    def read_back(self):
        """The fresh reader; what went wrong, or None."""
        command = [*self.reader, "final", self.bootstrap, self.folder]
        with open(os.path.join(self.work, "bank-final.log"), "w") as log:
            done = subprocess.run(command, env=self.env, stdout=log, stderr=log, timeout=150)
        return None if done.returncode == 0 else f"the bank's final reader ended with {done.returncode}"


class Transfer:
    def __init__(self, teller, number, event):
        self.teller, self.number, self.kind = teller, number, event["kind"]
        self.legs = {f"{teller}:{number}:{a}:{amount}": a for a, amount in event["legs"]}
        self.outcome = "unknown"  # until a later event tells

    def __str__(self):
        return f"transfer {self.number} of {self.teller} ({self.kind}, {self.outcome})"


class Checker:
    def __init__(self, histories):
        self.histories = histories
        self.anomalies = {kind: [] for kind in ANOMALIES}
        self.counts = collections.Counter()
        self.transfers = {}  # (teller, number) -> Transfer
        self.of = {}  # value -> Transfer
        self.log = collections.defaultdict(dict)  # account -> offset -> value, what is committed at the end
        self.ledger = collections.defaultdict(dict)

    def add(self, kind, text):
        self.anomalies[kind].append(text)

    def role(self, *roles):
        for name, events in sorted(self.histories.items()):
            if events and events[0].get("role") in roles:
                yield name, events

    def run(self):
        self.gather()
        self.completeness()
        for transfer in self.transfers.values():
            self.outcome(transfer)
        self.log_is_sound()
        for name, events in self.role("follower"):
            self.follower(name, events)
        self.ledger_is_exact()
        return self

    def gather(self):
        for name, events in self.role("teller"):
            for e in events:
                self.teller(name, e)
        for name, events in self.role("final"):
            for e in events:
                if e["e"] == "poll":
                    into = self.log if e["topic"] == BANK else self.ledger
                    for offset, value in e["r"]:
                        before = into[e["p"]].setdefault(offset, value)
                        if before != value:
                            self.add("leg_moved", f"{e['topic']}-{e['p']}, offset {offset}: {before}, then {value}")
                elif e["e"] == "ends":
                    for p, high in e["high"].items():
                        if e["stable"][p] != high:
                            self.add("hanging", f"{e['topic']}-{p}: stable up to {e['stable'][p]}, end {high}")
                        self.counts[f"offsets in {e['topic']}, markers and aborted records with them"] += high

    def teller(self, name, e):
        if e["e"] == "begin":
            transfer = Transfer(name, e["n"], e)
            self.transfers[(name, e["n"])] = transfer
            self.of.update((value, transfer) for value in transfer.legs)
            self.counts["transfers begun"] += 1
        elif e["e"] in ("committed", "unknown", *NEVER):
            transfer = self.transfers[(name, e["n"])]
            transfer.outcome = e["e"]
            self.counts[f"transfers {e['e']}"] += 1
            if e["e"] == "committed" and transfer.kind == "zombie":
                self.add("zombie_committed", str(transfer))

    def completeness(self):
        for name, events in self.histories.items():
            if not events or events[-1]["e"] != "close":
                self.add("bank_incomplete", f"{name}: it did not come to its end")
            self.counts["errors told to the bank's clients"] += sum(1 for e in events if e["e"] == "error")
        for role in ("teller", "auditor", "follower", "final"):
            if not any(True for _ in self.role(role)):
                self.add("bank_incomplete", f"no history of one who is a {role}")
        if not self.counts["transfers committed"]:
            self.add("bank_incomplete", "nothing was committed")

    def outcome(self, transfer):
        """All legs or none; all if the commit was acknowledged; none if it never can have been."""
        there = [v for v, account in transfer.legs.items() if v in self.where(account)]
        if there and transfer.outcome in NEVER:
            self.add("aborted_visible", f"{transfer}: {there}")
        elif transfer.outcome == "committed" and len(there) < len(transfer.legs):
            self.add("lost_transfer", f"{transfer}: of {list(transfer.legs)} there are {there}")
        if 0 < len(there) < len(transfer.legs):
            self.add("torn", f"{transfer}: of {list(transfer.legs)} there are {there}")
        if there and transfer.outcome == "unknown":
            self.counts["transfers unknown to the client, and committed"] += 1

    def where(self, account):
        """value -> offset of one account; made once."""
        found = self.__dict__.setdefault("_where", {})
        if account not in found:
            found[account] = {v: o for o, v in self.log[account].items()}
        return found[account]

    def log_is_sound(self):
        for account, records in sorted(self.log.items()):
            first, newest = {}, {}
            for offset, value in sorted(records.items()):
                transfer = self.of.get(value)
                if transfer is None or transfer.legs[value] != account:
                    self.add("leg_phantom", f"account {account}, offset {offset}: {value}")
                    continue
                if value in first:
                    self.add("leg_twice", f"{value}: account {account}, offsets {first[value]} and {offset}")
                    continue
                first[value] = offset
                if transfer.number < newest.get(transfer.teller, 0):
                    self.add("leg_reordered", f"{value} lies behind number {newest[transfer.teller]}, at offset {offset}")
                newest[transfer.teller] = transfer.number
            self.counts["legs committed"] += len(first)

    def follower(self, name, events):
        """What one reader of committed records was given while brokers died."""
        last = {account: -1 for account in range(ACCOUNTS)}
        half = {}  # (teller, number) -> legs still to come
        total = 0
        for e in events:
            if e["e"] != "poll":
                continue
            for offset, value in e["r"]:
                total += self.step(name, e["p"], last, offset, value, half)
            self.counts["moments at which a reader's sum was checked"] += 1
            # Legs of transfers that are not whole yet are what the sum may be off by, and nothing else is.
            if total != sum(amount_of(v) for seen in half.values() for v in seen):
                self.add("sum", f"{name} at {e['t']}: {total} besides half transfers")
        for account, records in self.log.items():
            left = [o for o in records if o > last[account]]
            if left:
                self.add("leg_skipped", f"{name}: account {account} was read up to {last[account]}, not {len(left)} behind")
        for key in half:
            self.add("sum", f"{name}: in the end {self.transfers[key]} is not whole")

    def step(self, name, account, last, offset, value, half):
        """One record; returns what it adds to the sum."""
        known = self.log[account].get(offset)
        transfer = self.of.get(value)
        if transfer is not None and transfer.outcome in NEVER:
            self.add("aborted_visible", f"{name}: account {account}, offset {offset}: {value}")
        elif known != value:
            self.add("leg_moved", f"{name}: account {account}, offset {offset}: {value}, in the end {known}")
        missed = [o for o in range(last[account] + 1, offset) if o in self.log[account]]
        if missed:
            self.add("leg_skipped", f"{name}: account {account}, from {last[account]} to {offset} over {missed[:5]}")
        if offset <= last[account]:
            self.add("leg_twice", f"{name}: account {account}, offset {offset} after {last[account]}")
        last[account] = max(last[account], offset)
        if transfer is None:
            return 0  # a phantom, told elsewhere if it stays
        key = (transfer.teller, transfer.number)
        seen = half.setdefault(key, set())
        seen.add(value)
        if len(seen) == len(transfer.legs):
            del half[key]
        return amount_of(value)

    def ledger_is_exact(self):
        copied = {}
        for book, records in self.ledger.items():
            for offset, entry in sorted(records.items()):
                account, at, value = entry.split(":", 2)
                place = (int(account), int(at))
                if self.log[place[0]].get(place[1]) != value or place[0] % BOOKS != book:
                    self.add("ledger_phantom", f"ledger-{book}, offset {offset}: {entry}")
                elif place in copied:
                    self.add("ledger_twice", f"{entry}: offsets {copied[place]} and {offset} of ledger-{book}")
                copied[place] = offset
        for account, records in self.log.items():
            missing = [o for o in records if (account, o) not in copied]
            if missing:
                self.add("ledger_missing", f"account {account}: {len(missing)} legs, the first at {min(missing)}")
        self.counts["legs copied to the ledger"] += len(copied)


def amount_of(value):
    return int(value.rsplit(":", 1)[1])


def check(histories):
    return Checker(histories).run()


def longest_wait(histories):
    """teller -> the longest time between two acknowledged commits."""
    found = {}
    for name, events in histories.items():
        times = [e["t"] for e in events if e["e"] == "committed"]
        if name in TELLERS and len(times) > 1:
            found[name] = max(b - a for a, b in zip(times, times[1:]))
    return found


def judge(folder):
    """Prints what was found; whether all held."""
    histories = history.load(folder)
    found = check(histories)
    print("\nthe bank")
    for what, count in sorted(found.counts.items()):
        print(f"{count:9d}  {what}")
    for name, seconds in sorted(longest_wait(histories).items()):
        print(f"{seconds:7.1f} s  longest time without a commit, {name}")
    for kind, texts in found.anomalies.items():
        if texts:
            print(f"{len(texts):9d}  {kind}")
        for text in texts[:5]:
            print(f"           {text[:300]}")
    good = not any(found.anomalies.values())
    print(f"{'         0  anomalies' if good else 'THE BANK DOES NOT HOLD'}", flush=True)
    return good
