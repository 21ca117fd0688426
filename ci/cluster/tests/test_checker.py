"""The checker finds each anomaly in a history that has it, and none in a history that has none."""

import copy
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from trial import checker  # noqa: E402


def sound():
    """Two partitions, an idempotent and a plain producer, a follower, a member, the final read.

    Partition 0 holds id:0:0, id:0:1, pl:0:0, id:0:2; partition 1 holds id:1:0. The member is assigned
    partition 0 twice and commits 2, then 4.
    """
    log = [[0, "id:0:0"], [1, "id:0:1"], [2, "pl:0:0"], [3, "id:0:2"]]
    whole = [{"e": "poll", "t": 9, "p": 0, "r": log}, {"e": "poll", "t": 9, "p": 1, "r": [[0, "id:1:0"]]}]
    both = {"e": "assigned", "t": 1, "p": [0, 1], "o": {"0": 0, "1": 0}}

    def sent(p, n, t):
        return {"e": "send", "t": t, "p": p, "n": n}

    def ack(p, n, t, o):
        return {"e": "ack", "t": t, "p": p, "n": n, "o": o}

    def opened(client, role, **more):
        return {"e": "open", "t": 0, "client": client, "role": role, **more}

    close = {"e": "close", "t": 20}
    return {
        "id": [
            opened("id", "producer", idempotent=True),
            *[sent(0, 0, 1), sent(0, 1, 2), sent(0, 2, 4), sent(1, 0, 4)],
            *[ack(0, 0, 5, 0), ack(0, 1, 5, 1), ack(0, 2, 6, 3), ack(1, 0, 6, 0)],
            close,
        ],
        "pl": [opened("pl", "producer", idempotent=False), sent(0, 0, 3), ack(0, 0, 5, 2), close],
        "follower": [opened("follower", "follower"), both, *whole, close],
        "member": [
            opened("member", "member"),
            {"e": "assigned", "t": 1, "p": [0], "o": {"0": -1}},
            {"e": "poll", "t": 6, "p": 0, "r": log[:2]},
            {"e": "commit", "t": 7, "id": 1, "o": {"0": 2}},
            {"e": "committed", "t": 8, "id": 1, "o": {"0": 2}},
            {"e": "revoked", "t": 9, "p": [0]},
            {"e": "fetched", "t": 10, "t0": 9.5, "o": {"0": 2}},
            {"e": "assigned", "t": 10, "p": [0], "o": {"0": 2}},
            {"e": "poll", "t": 11, "p": 0, "r": log[2:]},
            {"e": "commit", "t": 12, "id": 2, "o": {"0": 4}},
            {"e": "committed", "t": 13, "id": 2, "o": {"0": 4}},
            close,
        ],
        "watcher": [
            opened("watcher", "watcher"),
            {"e": "marks", "t": 2, "p": 0, "low": 0, "high": 2},
            {"e": "marks", "t": 3, "p": 1, "low": 0, "high": 1},
            {"e": "marks", "t": 4, "p": 0, "low": 0, "high": 4},
            close,
        ],
        "final": [
            opened("final", "final"),
            {"e": "ends", "t": 15, "o": {"0": 4, "1": 1}},
            both,
            *whole,
            {"e": "fetched", "t": 16, "t0": 15, "o": {"0": 4, "1": -1}},
            close,
        ],
    }


def event(history, kind, which=0):
    return [e for e in history if e["e"] == kind][which]


class Finds(unittest.TestCase):
    def setUp(self):
        # each event a copy of its own: the same read stands in several histories
        self.h = {name: [copy.deepcopy(e) for e in events] for name, events in sound().items()}

    def log(self, *records):
        """Everyone reads this in partition 0."""
        for name in ("follower", "final"):
            event(self.h[name], "poll")["r"] = [list(r) for r in records]
        event(self.h["final"], "ends")["o"]["0"] = records[-1][0] + 1

    def only(self, *kinds, excused=()):
        found = checker.check(self.h, excused).anomalies
        self.assertEqual(sorted(k for k, texts in found.items() if texts), sorted(kinds), found)
        return found

    def test_nothing_in_a_sound_history(self):
        self.only()
        counts = checker.check(self.h).counts
        self.assertEqual(counts["records acknowledged"], 5)
        self.assertEqual(counts["offsets in the log"], 5)

    def test_a_lost_acknowledged_write(self):
        # The log goes on above the hole: the record was cut out, or never was there.
        self.log((0, "id:0:0"), (1, "id:0:1"), (3, "id:0:2"))
        event(self.h["member"], "poll", 1)["r"].pop(0)
        found = self.only("lost", "gap", "unseen", "skipped")
        self.assertIn("pl:0:0", found["lost"][0])

    def test_a_lost_tail(self):
        # Nothing lies above it, and the log's end says that there never was: still lost.
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"))
        found = checker.check(self.h).anomalies
        self.assertIn("id:0:2", found["lost"][0])
        self.assertIn("id:0:2", found["unseen"][0])

    def test_a_write_that_was_acknowledged_elsewhere_than_it_lies(self):
        event(self.h["id"], "ack", 3)["o"] = 7
        self.only("lost")

    def test_an_acknowledgement_without_an_offset_needs_the_value_only(self):
        event(self.h["id"], "ack", 3)["o"] = -1
        self.only()
        for name in ("follower", "final"):
            event(self.h[name], "poll", 1)["r"] = []
        event(self.h["final"], "ends")["o"]["1"] = 0
        self.only("lost", "unseen")

    def test_a_duplicate_of_an_idempotent_write(self):
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"), (3, "id:0:2"), (4, "id:0:2"))
        self.only("duplicate")

    def test_a_duplicate_of_a_plain_write_is_allowed_and_counted(self):
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"), (3, "id:0:2"), (4, "pl:0:0"))
        self.only()
        self.assertEqual(checker.check(self.h).counts["duplicates of plain producers (allowed)"], 1)

    def test_an_idempotent_producers_order(self):
        self.h["id"].remove(event(self.h["id"], "ack", 1))
        self.h["id"].remove(event(self.h["id"], "ack", 1))
        for n in (1, 2):
            self.h["id"].insert(-1, {"e": "ack", "t": 6, "p": 0, "n": n, "o": {1: 3, 2: 1}[n]})
        order = ((0, "id:0:0"), (1, "id:0:2"), (2, "pl:0:0"), (3, "id:0:1"))
        self.log(*order)
        event(self.h["member"], "poll")["r"] = [list(r) for r in order[:2]]
        event(self.h["member"], "poll", 1)["r"] = [list(r) for r in order[2:]]
        self.only("reordered")

    def test_two_values_at_one_offset(self):
        # The member was shown what a deposed leader had there; all others saw the successor's.
        self.h["id"].insert(1, {"e": "send", "t": 1, "p": 0, "n": 9})
        self.h["id"].insert(-1, {"e": "fail", "t": 8, "p": 0, "n": 9, "error": "timed out"})
        event(self.h["member"], "poll")["r"][1] = [1, "id:0:9"]
        self.only("inconsistent", excused=[(0, 20)])

    def test_two_acknowledgements_of_one_offset(self):
        # Two leaders acknowledged: whichever the log has, one is lost.
        event(self.h["pl"], "ack")["o"] = 3
        found = checker.check(self.h).anomalies
        self.assertTrue(found["inconsistent"])
        self.assertIn("pl:0:0", found["lost"][0])

    def test_a_reader_that_sees_offsets_go_back(self):
        poll = event(self.h["follower"], "poll")
        poll["r"] = poll["r"] + [[2, "pl:0:0"], [3, "id:0:2"]]
        self.only("nonmonotonic")

    def test_the_same_offset_twice_goes_back_too(self):
        self.h["follower"].insert(3, {"e": "poll", "t": 9, "p": 0, "r": [[3, "id:0:2"]]})
        self.only("nonmonotonic")

    def test_a_new_assignment_may_go_back(self):
        # It starts at the committed offset, which may lie below what the last owner was given.
        event(self.h["member"], "poll")["r"].append([2, "pl:0:0"])
        self.only()

    def test_skipped_records(self):
        event(self.h["follower"], "poll")["r"].pop(1)
        found = self.only("skipped", "unseen")
        self.assertIn("over 1 records, 1 of them acknowledged", found["skipped"][0])

    def test_skipped_at_the_start_of_an_assignment(self):
        event(self.h["member"], "poll", 1)["r"].pop(0)
        self.only("skipped", "group_missed")

    def test_a_committed_offset_that_goes_back(self):
        event(self.h["final"], "fetched")["o"]["0"] = 2
        self.only("committed_back")

    def test_a_committed_offset_that_is_gone(self):
        event(self.h["member"], "fetched")["o"]["0"] = -1
        self.only("committed_back")

    def test_a_commit_that_was_not_acknowledged_may_stand_or_not(self):
        self.h["member"].remove(event(self.h["member"], "committed", 1))
        self.only()
        event(self.h["final"], "fetched")["o"]["0"] = 2
        self.only()

    def test_a_commit_after_the_question_proves_nothing(self):
        event(self.h["member"], "committed")["t"] = 9.7
        event(self.h["member"], "fetched")["o"]["0"] = -1
        event(self.h["member"], "assigned", 1)["o"]["0"] = 2
        self.only()

    def test_an_offset_that_nobody_committed(self):
        event(self.h["final"], "fetched")["o"]["0"] = 5
        self.assertTrue(checker.check(self.h).anomalies["committed_unasked"])

    def test_a_record_that_the_group_never_was_given(self):
        self.h["member"].remove(event(self.h["member"], "poll"))
        self.only("group_missed")

    def test_unseen_records_at_the_end(self):
        event(self.h["follower"], "poll")["r"].pop()
        self.only("unseen")

    def test_a_value_from_nowhere(self):
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"), (3, "id:0:2"), (4, "xx:0:0"))
        self.only("phantom")

    def test_a_value_in_another_partition(self):
        for name in ("follower", "final"):
            event(self.h[name], "poll", 1)["r"].append([1, "id:0:1"])
        event(self.h["final"], "ends")["o"]["1"] = 2
        self.assertTrue(checker.check(self.h).anomalies["phantom"])

    def test_a_hole_in_the_log(self):
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"), (3, "id:0:2"), (5, "pl:0:0"))
        self.only("gap")

    def test_a_hole_at_the_start_of_the_log(self):
        for name in ("follower", "final"):
            event(self.h[name], "poll", 1)["r"][0][0] = 1
        event(self.h["id"], "ack", 3)["o"] = 1
        event(self.h["final"], "ends")["o"]["1"] = 2
        self.only("gap")

    def test_a_high_watermark_that_goes_back(self):
        event(self.h["watcher"], "marks", 2)["high"] = 1
        self.only("marks_back")

    def test_a_log_start_that_goes_back(self):
        event(self.h["watcher"], "marks")["low"] = 1
        self.only("marks_back")

    def test_an_error_that_a_user_was_shown(self):
        fail = {"e": "fail", "t": 6, "p": 0, "n": 3, "error": "timed out"}
        self.h["id"][-1:-1] = [{"e": "send", "t": 4, "p": 0, "n": 3}, fail]
        self.only("errors_shown")
        self.only(excused=[(5, 7)])
        self.only("errors_shown", excused=[(7, 9)])

    def test_a_failed_write_may_be_in_the_log_or_not(self):
        fail = {"e": "fail", "t": 6, "p": 0, "n": 3, "error": "timed out"}
        self.h["id"][-1:-1] = [{"e": "send", "t": 4, "p": 0, "n": 3}, fail]
        self.log((0, "id:0:0"), (1, "id:0:1"), (2, "pl:0:0"), (3, "id:0:2"), (4, "id:0:3"))
        self.only(excused=[(5, 7)])

    def test_a_client_that_did_not_end(self):
        self.h["follower"].pop()
        self.only("incomplete")

    def test_a_send_without_an_answer(self):
        self.h["id"].insert(-1, {"e": "send", "t": 4, "p": 0, "n": 3})
        self.only("incomplete")

    def test_a_final_read_that_stopped_short(self):
        event(self.h["final"], "ends")["o"]["1"] = 2
        self.only("incomplete")

    def test_a_history_without_anything(self):
        self.assertTrue(checker.check({}).anomalies["incomplete"])


class Lists(unittest.TestCase):
    def test_every_anomaly_has_a_test_that_sees_it(self):
        with open(__file__, encoding="utf-8") as source:
            text = source.read()
        for kind in checker.ANOMALIES:
            self.assertIn(f'"{kind}"', text, kind)


if __name__ == "__main__":
    unittest.main()
