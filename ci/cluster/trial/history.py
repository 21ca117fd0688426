"""Reads the histories that the clients and the script wrote: one JSON object a line.

A client that was ended in the middle of a line leaves a torn last line; it is passed over. Any
other line that cannot be read is an error: a checker must not skip what it does not understand.
"""

import glob
import json
import os


def events(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    whole, torn = lines[:-1], lines[-1]
    found = []
    for number, line in enumerate(whole, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if torn:
        found.append({"e": "torn", "t": found[-1]["t"] if found else 0.0})
    return found


def load(folder):
    """All histories of a run: name -> events."""
    paths = sorted(glob.glob(os.path.join(folder, "*.jsonl")))
    return {os.path.basename(p)[: -len(".jsonl")]: events(p) for p in paths}


class Tail:
    """Follows histories while they are written: what was acknowledged and committed, and when."""

    def __init__(self, folder, producers, group_members):
        names = [*producers, *group_members]
        self.paths = {n: os.path.join(folder, f"{n}.jsonl") for n in names}
        self.at = {n: 0 for n in names}
        self.asked = {}  # (member, commit) -> when it was asked for
        self.last_commit = {}  # partition -> when its last acknowledged commit was asked for
        self.last_ack = {}  # partition -> when its last acknowledged record was sent
        self.sent = {}  # (client, partition, number) -> time, until acknowledged
        self.acked = {n: 0 for n in producers}
        self.failed = 0

    def refresh(self):
        for name, path in self.paths.items():
            if not os.path.exists(path):
                continue
            with open(path, "rb") as file:
                file.seek(self.at[name])
                data = file.read()
            cut = data.rfind(b"\n") + 1
            self.at[name] += cut
            for line in data[:cut].splitlines():
                self.take(name, json.loads(line))

    def take(self, name, event):
        if event["e"] == "commit":
            self.asked[(name, event["id"])] = event["t"]
        elif event["e"] == "committed":
            for p in map(int, event["o"]):
                self.last_commit[p] = max(self.asked[(name, event["id"])], self.last_commit.get(p, 0.0))
        if event["e"] not in ("send", "ack", "fail"):
            return
        key = (name, event["p"], event["n"])
        if event["e"] == "send":
            self.sent[key] = event["t"]
            return
        sent = self.sent.pop(key, None)
        if event["e"] == "fail":
            self.failed += 1
        elif sent is not None:
            self.acked[name] += 1
            self.last_ack[event["p"]] = max(sent, self.last_ack.get(event["p"], 0.0))

    def all_since(self, partitions, moment):
        """Whether each of the partitions acknowledged a record that was sent after `moment`."""
        self.refresh()
        return all(self.last_ack.get(p, 0.0) > moment for p in partitions)

    def committed_since(self, partitions, moment):
        """Whether for each of the partitions a commit that was asked for after `moment` was acknowledged."""
        self.refresh()
        return all(self.last_commit.get(p, 0.0) > moment for p in partitions)
