"""Judges the clients' histories, in the style of Jepsen's Kafka test.

What it takes as given: that each value is sent once (`client:partition:number`), that the clients
noted truthfully what they were told, and that the histories share one clock. It knows nothing of
brokers, faults or leaders. The anomalies it looks for, each by the name that it reports:

lost              an acknowledged value is not in the log at the end
unseen            a follower that read from the start to the end never saw an acknowledged value
duplicate         a value of an idempotent producer lies at two offsets
reordered         an idempotent producer's values lie in another order than they were sent in
inconsistent      two values were seen at one offset, by whomever (an acknowledgement counts as seeing)
phantom           a value was read that nobody sent
gap               an offset below the end of the log holds nothing (there are no transactions here)
nonmonotonic      a consumer that did not seek was given an offset again, or an earlier one
skipped           a consumer that did not seek jumped over a record that is in the log
committed_back    the group's offset was read below one whose commit had been acknowledged before
committed_unasked the group's offset is one that nobody committed
group_missed      a record below the group's offset was given to no member
marks_back        a partition's log start or high watermark was told to be lower than before
errors_shown      a producer's user was shown an error (outside the times that `excused` names)
incomplete        a client did not come to its end, or a history has nothing to judge by

It does not look at transactions, timestamps or headers, and it does not judge times.
"""

import collections

ANOMALIES = (
    "lost",
    "unseen",
    "duplicate",
    "reordered",
    "inconsistent",
    "phantom",
    "gap",
    "nonmonotonic",
    "skipped",
    "committed_back",
    "committed_unasked",
    "group_missed",
    "marks_back",
    "errors_shown",
    "incomplete",
)


class Verdict:
    def __init__(self):
        self.anomalies = {kind: [] for kind in ANOMALIES}
        self.counts = collections.Counter()

    def add(self, kind, text):
        self.anomalies[kind].append(text)

    @property
    def holds(self):
        return not any(self.anomalies.values())


class Client:
    """One history, sorted into what the checks ask for."""

    def __init__(self, name, events):
        self.name = name
        self.events = events
        opened = [e for e in events if e["e"] == "open"]
        self.role = opened[0]["role"] if opened else None
        self.idempotent = bool(opened and opened[0].get("idempotent"))
        self.closed = any(e["e"] == "close" for e in events)

    def of(self, kind):
        return (e for e in self.events if e["e"] == kind)


class Checker:
    def __init__(self, histories, excused=()):
        self.clients = [Client(n, e) for n, e in sorted(histories.items())]
        self.excused = list(excused)  # [(from, to)]: errors that overlap these are the fault's own
        self.verdict = Verdict()
        self.sent = {}  # value -> (client, partition, number, time)
        self.acked = {}  # value -> (partition, offset)
        self.log = collections.defaultdict(dict)  # partition -> offset -> value: the final read
        self.known = collections.defaultdict(dict)  # the same of everything that anyone saw
        self.log_end = {}  # partition -> end offset, as the final reader was told

    def role(self, *roles):
        return [c for c in self.clients if c.role in roles]

    def run(self):
        self.gather_producers()
        self.gather_reads()
        self.completeness()
        self.acknowledged_is_there()
        self.log_is_sound()
        for client in self.role("follower", "member", "final"):
            self.polls(client)
        for client in self.role("follower"):
            self.follower_saw_all(client)
        self.group_offsets()
        self.group_saw_all()
        for client in self.role("watcher"):
            self.marks(client)
        return self.verdict

    # -- gathering

    def gather_producers(self):
        counts = self.verdict.counts
        for client in self.role("producer"):
            for e in client.events:
                kind = e["e"]
                if kind not in ("send", "ack", "fail"):
                    continue
                value = f"{client.name}:{e['p']}:{e['n']}"
                if kind == "send":
                    self.sent[value] = (client, e["p"], e["n"], e["t"])
                    counts["records sent"] += 1
                elif kind == "ack":
                    counts["records acknowledged"] += 1
                    counts[f"acknowledged to {client.name}"] += 1
                    self.acked[value] = (e["p"], e["o"])
                    if e["o"] >= 0:  # a client may not be told where a repeated batch had gone
                        self.saw(e["p"], e["o"], value, f"{client.name}'s acknowledgement")
                else:
                    self.failed(value, e)

    def failed(self, value, event):
        since = self.sent[value][3]
        overlap = any(since <= to and event["t"] >= start for start, to in self.excused)
        if overlap:
            self.verdict.counts["produce errors shown, excused"] += 1
        else:
            self.verdict.add("errors_shown", f"{value}, sent at {since}, failed at {event['t']}: {event['error']}")

    def saw(self, partition, offset, value, whom):
        before = self.known[partition].setdefault(offset, value)
        if before != value:
            text = f"partition {partition}, offset {offset}: {before}, but {value} in {whom}"
            self.verdict.add("inconsistent", text)

    def gather_reads(self):
        counts = self.verdict.counts
        unknown = set()
        for client in self.role("follower", "member", "final"):
            for e in client.of("poll"):
                counts[f"records read by {client.role}s"] += len(e["r"])
                for offset, value in e["r"]:
                    self.saw(e["p"], offset, value, f"a poll of {client.name} at {e['t']}")
                    sent = self.sent.get(value)
                    if (sent is None or sent[1] != e["p"]) and value not in unknown:
                        unknown.add(value)
                        self.verdict.add("phantom", f"{client.name}: partition {e['p']}, offset {offset}: {value}")
                    if client.role == "final":
                        self.log[e["p"]][offset] = value
            for e in client.of("ends"):
                self.log_end.update((int(p), o) for p, o in e["o"].items())

    def completeness(self):
        add = self.verdict.add
        for client in self.clients:
            if client.role is None:
                add("incomplete", f"{client.name}: the history does not begin")
            elif client.role != "script" and not client.closed:
                add("incomplete", f"{client.name}: it did not come to its end")
            for e in client.of("error"):
                self.verdict.counts[f"other errors noted by {client.name}"] += 1
        for role in ("producer", "follower", "member", "watcher", "final"):
            if not self.role(role):
                add("incomplete", f"no history of a {role}")
        if not self.acked:
            add("incomplete", "nothing was acknowledged")
        for client in self.role("producer"):
            if client.closed:
                told = sum(1 for e in client.events if e["e"] in ("ack", "fail"))
                asked = sum(1 for _ in client.of("send"))
                if told != asked:
                    add("incomplete", f"{client.name}: {asked} records sent, {told} answers")
        for p, end in sorted(self.log_end.items()):
            reached = max(self.log[p], default=-1) + 1
            if reached < end:
                add("incomplete", f"the final read of partition {p} came to {reached} of {end}")
        if self.role("final") and not self.log_end:
            add("incomplete", "the final reader was told of no end")

    # -- the log

    def acknowledged_is_there(self):
        values = {}
        for p, records in self.log.items():
            for value in records.values():
                values.setdefault(value, p)
        for value, (p, offset) in self.acked.items():
            if offset >= 0 and self.log[p].get(offset) == value:
                continue
            if offset < 0 and values.get(value) == p:
                self.verdict.counts["acknowledged without an offset"] += 1
                continue
            at = self.log[p].get(offset)
            self.verdict.add("lost", f"{value}, acknowledged at partition {p}, offset {offset}; the log has {at} there")

    def log_is_sound(self):
        for p, records in sorted(self.log.items()):
            offsets = sorted(records)
            for a, b in zip([-1, *offsets], offsets):
                if b != a + 1:
                    self.verdict.add("gap", f"partition {p}: nothing at {a + 1}..{b - 1}")
            first, newest = {}, {}
            for offset in offsets:
                self.place(p, offset, records[offset], first, newest)
            self.verdict.counts["offsets in the log"] += len(offsets)

    def place(self, p, offset, value, first, newest):
        """One record of the log, in order: is it there before, is its producer's order kept?"""
        if value not in self.sent:
            return  # a phantom, told elsewhere
        client, _, number, _ = self.sent[value]
        if value in first:
            if client.idempotent:
                self.verdict.add("duplicate", f"{value}: partition {p}, offsets {first[value]} and {offset}")
            else:
                self.verdict.counts["duplicates of plain producers (allowed)"] += 1
            return
        first[value] = offset
        before = newest.get(client.name, -1)
        if number < before:
            if client.idempotent:
                self.verdict.add("reordered", f"{value} at partition {p}, offset {offset} lies behind number {before}")
            else:
                self.verdict.counts["reordered records of plain producers (allowed)"] += 1
        newest[client.name] = max(before, number)

    # -- consumers

    def polls(self, client):
        """Offsets that one consumer was given, from assignment to revocation, in the order given."""
        last = {}  # partition -> the last offset of the present assignment; None: not known
        for e in client.events:
            if e["e"] == "assigned":
                known = e["o"] or {}
                for p in e["p"]:
                    start = known.get(str(p))
                    last[p] = None if start is None else max(start, 0) - 1
                self.verdict.counts[f"assignments of {client.role}s"] += 1
            elif e["e"] == "revoked":
                for p in e["p"]:
                    last.pop(p, None)
            elif e["e"] == "poll":
                self.verdict.counts["polls checked"] += 1
                for offset, value in e["r"]:
                    self.step(client, e, last.get(e["p"]), offset)
                    last[e["p"]] = offset

    def step(self, client, event, last, offset):
        if last is None or offset == last + 1:
            return
        p = event["p"]
        where = f"{client.name}, partition {p}, at {event['t']}"
        if offset <= last:
            self.verdict.add("nonmonotonic", f"{where}: offset {offset} after {last}")
            return
        missed = [o for o in range(last + 1, offset) if o in self.known[p]]
        if missed:
            acked = sum(1 for o in missed if self.acked.get(self.known[p][o]) == (p, o))
            self.verdict.add(
                "skipped", f"{where}: from {last} to {offset}, over {len(missed)} records, {acked} of them acknowledged"
            )

    def follower_saw_all(self, client):
        seen = {value for e in client.of("poll") for _, value in e["r"]}
        for value, (p, offset) in self.acked.items():
            if value not in seen:
                self.verdict.add("unseen", f"{client.name}: {value}, acknowledged at partition {p}, offset {offset}")

    # -- the group

    def group_offsets(self):
        """Every offset that the coordinator told against every commit it acknowledged before."""
        tried = collections.defaultdict(lambda: [])  # partition -> [(time, offset)]
        done = collections.defaultdict(lambda: [])
        for client in self.role("member"):
            for e in client.of("commit"):
                for p, o in e["o"].items():
                    tried[p].append((e["t"], o))
            for e in client.of("committed"):
                self.verdict.counts["commits acknowledged"] += 1
                for p, o in e["o"].items():
                    done[p].append((e["t"], o, client.name))
            self.verdict.counts["commits refused or failed"] += sum(1 for _ in client.of("commit_failed"))
        if self.role("member") and not done:
            self.verdict.add("incomplete", "nothing was committed")
        for client in self.role("member", "final"):
            for e in client.of("fetched"):
                self.verdict.counts["group offsets looked up"] += 1
                for p, offset in e["o"].items():
                    self.told(client, e, p, offset, tried[p], done[p])
        if self.role("final") and not any(True for c in self.role("final") for _ in c.of("fetched")):
            self.verdict.add("incomplete", "the group's offsets were not read at the end")

    def told(self, client, event, p, offset, tried, done):
        where = f"{client.name}, partition {p}, asked at {event['t0']}: {offset}"
        before = [d for d in done if d[0] < event["t0"]]
        highest = max(before, key=lambda d: d[1], default=None)
        if highest and offset < highest[1]:
            text = f"{where}, but {highest[1]} was acknowledged to {highest[2]} at {highest[0]}"
            self.verdict.add("committed_back", text)
        if offset >= 0 and not any(t <= event["t"] and o == offset for t, o in tried):
            self.verdict.add("committed_unasked", where)

    def group_saw_all(self):
        seen = collections.defaultdict(set)
        for client in self.role("member"):
            for e in client.of("poll"):
                seen[e["p"]].update(o for o, _ in e["r"])
        for client in self.role("final"):
            for e in client.of("fetched"):
                for p, offset in e["o"].items():
                    missed = [o for o in self.log[int(p)] if o < offset and o not in seen[int(p)]]
                    self.verdict.counts["records given to the group and committed"] += max(offset, 0)
                    if missed:
                        text = f"partition {p}: {len(missed)} records below {offset}, the first at {min(missed)}"
                        self.verdict.add("group_missed", text)

    def marks(self, client):
        """One after the other, as one watcher was told them."""
        last = {}
        for e in client.of("marks"):
            self.verdict.counts["high watermarks looked up"] += 1
            now, before = (e["low"], e["high"]), last.get(e["p"], (0, 0))
            if now[0] < before[0] or now[1] < before[1]:
                text = f"{client.name}, partition {e['p']}, at {e['t']}: start and high watermark {now} after {before}"
                self.verdict.add("marks_back", text)
            last[e["p"]] = now


def check(histories, excused=()):
    return Checker(histories, excused).run()
