"""The bank's checker finds each anomaly in a history that has it, and none in a history that has none."""

import copy
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "conformance"),
]

from trial import bank  # noqa: E402

CLOSE = {"e": "close", "t": 20}


def opened(client, role):
    return {"e": "open", "t": 0, "client": client, "role": role}


def sound():
    """One teller: transfer 1 commits from account 0 to 1, 2 is aborted, 3 (1 to 0) commits, 4 is left to a zombie.

    Account 0 holds leg 1 at 0, an aborted one at 2, leg 3 at 4; account 1 leg 1 at 0, leg 3 at 2, markers between.
    """
    t = "t"
    zero = [[0, "t:1:0:-5"], [4, "t:3:0:7"]]
    one = [[0, "t:1:1:5"], [2, "t:3:1:-7"]]

    def begin(n, kind, *legs):
        return {"e": "begin", "t": n, "n": n, "kind": kind, "legs": [list(leg) for leg in legs]}

    def read(topic, p, records):
        return {"e": "poll", "t": 9, "topic": topic, "p": p, "r": [list(r) for r in records]}

    return {
        t: [
            opened(t, "teller"),
            begin(1, "commit", (0, -5), (1, 5)),
            {"e": "committed", "t": 2, "n": 1},
            begin(2, "abort", (0, -6), (1, 6)),
            {"e": "aborted", "t": 3, "n": 2},
            begin(3, "commit", (1, -7), (0, 7)),
            {"e": "committed", "t": 4, "n": 3},
            begin(4, "zombie", (0, -8), (1, 8)),
            {"e": "fenced", "t": 5, "n": 4},
            CLOSE,
        ],
        "auditor": [opened("auditor", "auditor"), {"e": "moved", "t": 7, "c": 4}, CLOSE],
        "follower": [
            opened("follower", "follower"),
            read("bank", 0, zero[:1]),
            read("bank", 1, one),
            read("bank", 0, zero[1:]),
            CLOSE,
        ],
        "final": [
            opened("final", "final"),
            {"e": "ends", "t": 8, "topic": "bank", "stable": {"0": 6, "1": 4}, "high": {"0": 6, "1": 4}},
            {"e": "ends", "t": 8, "topic": "ledger", "stable": {"0": 3, "1": 3}, "high": {"0": 3, "1": 3}},
            CLOSE,
        ],
        "final-bank": [opened("final-bank", "final"), read("bank", 0, zero), read("bank", 1, one), CLOSE],
        "final-ledger": [
            opened("final-ledger", "final"),
            read("ledger", 0, [[0, "0:0:t:1:0:-5"], [1, "0:4:t:3:0:7"]]),
            read("ledger", 1, [[0, "1:0:t:1:1:5"], [1, "1:2:t:3:1:-7"]]),
            CLOSE,
        ],
    }


class Finds(unittest.TestCase):
    def setUp(self):
        self.h = copy.deepcopy(sound())

    def kinds(self):
        found = bank.check(self.h).anomalies
        return sorted(kind for kind, texts in found.items() if texts), found

    def finds(self, *wanted):
        kinds, found = self.kinds()
        for kind in wanted:
            self.assertIn(kind, kinds, found)

    def polls(self, name):
        return [e for e in self.h[name] if e["e"] == "poll"]

    def everywhere(self, act):
        """Changes what everyone read of account 0, the ledger aside."""
        act(self.polls("follower")[0]["r"], self.polls("follower")[2]["r"])
        act(self.polls("final-bank")[0]["r"], self.polls("final-bank")[0]["r"])

    def test_nothing_in_a_sound_history(self):
        kinds, found = self.kinds()
        self.assertEqual(kinds, [], found)
        self.assertEqual(bank.check(self.h).counts["legs committed"], 4)

    def test_every_anomaly_has_a_name(self):
        self.assertEqual(len(bank.ANOMALIES), 15)

    def test_a_lost_transfer(self):
        for p in (0, 1):
            self.polls("final-bank")[p]["r"].pop()
        self.finds("lost_transfer")

    def test_a_torn_transfer(self):
        self.polls("final-bank")[1]["r"].pop()
        self.h["t"][6]["e"] = "unknown"
        self.finds("torn")

    def test_a_torn_transfer_spoils_the_sum_of_its_reader(self):
        self.polls("follower")[1]["r"].pop()
        self.finds("sum", "leg_skipped")

    def test_an_aborted_transfer_at_the_end(self):
        self.polls("final-bank")[0]["r"].insert(1, [2, "t:2:0:-6"])
        self.finds("aborted_visible", "torn")

    def test_an_aborted_transfer_seen_for_a_moment(self):
        self.polls("follower")[0]["r"].append([2, "t:2:0:-6"])
        self.finds("aborted_visible")

    def test_a_zombie_s_transfer(self):
        self.polls("follower")[2]["r"].append([5, "t:4:0:-8"])
        self.finds("aborted_visible")

    def test_a_zombie_that_commits(self):
        self.h["t"][8]["e"] = "committed"
        self.finds("zombie_committed")

    def test_a_dropped_transfer(self):
        self.h["t"][2]["e"] = "dropped"
        self.finds("aborted_visible")

    def test_an_unknown_outcome_may_be_either(self):
        self.h["t"][2]["e"] = "unknown"
        self.assertEqual(self.kinds()[0], [])

    def test_a_leg_twice(self):
        self.polls("final-bank")[0]["r"].append([5, "t:1:0:-5"])
        self.finds("leg_twice")

    def test_an_offset_given_twice_to_a_reader(self):
        self.polls("follower")[2]["r"].append([4, "t:3:0:7"])
        self.finds("leg_twice")

    def test_a_phantom(self):
        self.polls("final-bank")[0]["r"].append([5, "t:9:0:1"])
        self.finds("leg_phantom")

    def test_two_values_at_one_offset(self):
        self.polls("follower")[0]["r"][0][1] = "t:3:0:7"
        self.finds("leg_moved")

    def test_reordered_transfers(self):
        self.everywhere(lambda first, last: (first[0].__setitem__(1, "t:3:0:7"), last[-1].__setitem__(1, "t:1:0:-5")))
        self.finds("leg_reordered")

    def test_a_reader_that_jumps(self):
        self.polls("follower")[0]["r"].clear()
        self.finds("leg_skipped")

    def test_a_reader_that_stops_short(self):
        self.polls("follower")[2]["r"].clear()
        self.finds("leg_skipped", "sum")

    def test_a_leg_that_was_not_copied(self):
        self.polls("final-ledger")[0]["r"].pop()
        self.finds("ledger_missing")

    def test_a_leg_that_was_copied_twice(self):
        self.polls("final-ledger")[0]["r"].append([2, "0:4:t:3:0:7"])
        self.finds("ledger_twice")

    def test_a_copy_of_what_is_not_committed(self):
        self.polls("final-ledger")[0]["r"].append([2, "0:2:t:2:0:-6"])
        self.finds("ledger_phantom")

    def test_a_hanging_transaction(self):
        self.h["final"][1]["stable"]["0"] = 2
        self.finds("hanging")

    def test_a_client_that_did_not_end(self):
        self.h["auditor"].pop()
        self.finds("bank_incomplete")

    def test_a_role_that_is_missing(self):
        del self.h["auditor"]
        self.finds("bank_incomplete")


if __name__ == "__main__":
    unittest.main()
