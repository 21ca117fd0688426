"""Counts what the clients report against the written lists in `expect/`.

A list names one check a line; `#` starts a comment. A second word `highwater` marks a check that
makes sense on Highwater only. A listed check that did not report is a failure, and so is a
reported check that no list names: neither a crash of a client nor a forgotten line passes.
"""

import os
import re
import threading

LINE = re.compile(r"^(ok|not ok) ([a-z0-9_]+) ([0-9.]+)(?: (.*))?$")


def expected(path, target):
    names = []
    with open(path) as f:
        for line in f:
            words = line.split("#")[0].split()
            if words and (len(words) == 1 or words[1] == target):
                names.append(words[0])
    if len(names) != len(set(names)):
        raise ValueError(f"{path} names a check twice")
    return names


class Report:
    def __init__(self, folder, target, clients):
        self.target = target
        self.lists = {
            c: expected(os.path.join(folder, f"{c}.txt"), target) for c in clients
        }
        self.results = {c: {} for c in clients}
        self.lock = threading.Lock()

    def take(self, client, line):
        """Takes one line of a client's output; returns whether it was a result."""
        found = LINE.match(line.strip())
        if found:
            self.add(client, found[2], found[1] == "ok", float(found[3]), found[4] or "")
        return bool(found)

    def add(self, client, name, passed, seconds=0.0, reason=""):
        with self.lock:
            if name not in self.lists[client]:
                passed, reason = False, f"not in expect/{client}.txt {reason}"
            if name in self.results[client]:
                passed, reason = False, f"reported twice; {reason}"
            self.results[client][name] = (passed, reason)
            mark = "ok  " if passed else "FAIL"
            print(f"{mark} {client:<13} {name:<42} {seconds:7.2f} s  {reason}".rstrip(), flush=True)

    def close(self, only=None):
        """Fails what is missing, prints the table and the closing line; true if none failed."""
        for client, names in self.lists.items():
            for name in names:
                if name not in self.results[client] and (not only or name in only):
                    self.add(client, name, False, 0.0, "did not run or did not report")
        print()
        total_passed = total_failed = 0
        for client, results in self.results.items():
            passed = sum(1 for ok, _ in results.values() if ok)
            failed = len(results) - passed
            total_passed += passed
            total_failed += failed
            bad = " ".join(n for n, (ok, _) in results.items() if not ok)
            print(f"{client:<13} {passed:4d} passed {failed:4d} failed  {bad}".rstrip())
        print()
        print(f"{total_passed} passed, {total_failed} failed", flush=True)
        return total_failed == 0 and total_passed > 0
