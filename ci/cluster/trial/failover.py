"""How long partitions took no writes, by cause, from the histories.

A partition's pause after a fault is the longest time without an acknowledgement of a record that was
sent after the fault (a record sent before it may have been acknowledged by the old leader), from
the fault to the end of its window. For a killed or stopped leader that is the time from the fault to the
first acknowledged produce. A leader that is asked to go away acknowledges until it hands a partition
over; for it, this is the pause at the handover. All producers count together: what is measured is
the cluster with the client that comes back first, not each client's patience.
"""

import math


def sends_and_acks(histories):
    """partition -> [(acknowledged, sent)], sorted."""
    found = {}
    for events in histories.values():
        sent = {}
        for e in events:
            if e["e"] == "send":
                sent[(e["p"], e["n"])] = e["t"]
            elif e["e"] == "ack":
                since = sent.get((e["p"], e["n"]))
                if since is not None:
                    found.setdefault(e["p"], []).append((e["t"], since))
    return {p: sorted(times) for p, times in found.items()}


def pause(acks, fault, end):
    """The longest wait within [fault, end]; None if nothing sent after the fault was acknowledged."""
    moments = [t for t, sent in acks if sent >= fault and t <= end]
    if not moments:
        return None
    return max(b - a for a, b in zip([fault, *moments], moments))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Cause:
    """What one kind of fault cost."""

    def __init__(self, bound):
        self.bound = bound  # seconds; None: only shown
        self.pauses = []
        self.faults = 0
        self.over = []

    def row(self, name):
        bound = "-" if self.bound is None else f"{self.bound:.1f} s"
        if not self.pauses:
            return f"{name:<26} {self.faults:6d} {0:10d} {'-':>9} {'-':>9} {bound:>9}"
        p50, most = percentile(self.pauses, 0.5), max(self.pauses)
        numbers = f"{p50:7.2f} s {most:7.2f} s"
        return f"{name:<26} {self.faults:6d} {len(self.pauses):10d} {numbers} {bound:>9}"


def by_cause(histories, script, bounds):
    """The script's `fault` events (cause, partitions, t, end) against what the producers saw."""
    acks = sends_and_acks({n: e for n, e in histories.items() if n != "script"})
    causes = {cause: Cause(bound) for cause, bound in bounds.items()}
    ends = {e["id"]: e["t"] for e in script if e["e"] == "fault_end"}
    for e in script:
        if e["e"] != "fault":
            continue
        cause = causes[e["cause"]]
        cause.faults += 1
        for p in e["partitions"]:
            took = pause(acks.get(p, []), e["t"], ends.get(e["id"], math.inf))
            where = f"{e['cause']} of {e['of']} at {e['t']}, partition {p}"
            if took is None:
                cause.over.append(f"{where}: nothing was acknowledged until the script went on")
            else:
                cause.pauses.append(took)
                if cause.bound is not None and took > cause.bound:
                    cause.over.append(f"{where}: {took:.2f} s, bound {cause.bound:.1f} s")
    return causes
