"""Pauses are measured from the fault, on what was sent after it."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from trial import failover  # noqa: E402


def producer(*records):
    """(number, sent, acknowledged or None) in partition 0."""
    events = [{"e": "send", "t": t, "p": 0, "n": n} for n, t, _ in records]
    return events + [{"e": "ack", "t": a, "p": 0, "n": n, "o": n} for n, _, a in records if a is not None]


def script(fault, end, cause="kill"):
    started = {"e": "fault", "t": fault, "id": 1, "cause": cause, "of": "broker 1", "partitions": [0]}
    return [started, {"e": "fault_end", "t": end, "id": 1}]


class Pauses(unittest.TestCase):
    def measured(self, producers, script_, bound=3.0):
        histories = {f"p{i}": p for i, p in enumerate(producers)}
        return failover.by_cause(histories, script_, {"kill": bound})["kill"]

    def test_a_kill_is_measured_to_the_first_acknowledgement(self):
        load = producer((0, 9.9, 10.0), (1, 10.2, 15.0), (2, 12.0, 15.0), (3, 15.1, 15.2))
        self.assertEqual(self.measured([load], script(10.1, 16)).pauses, [15.0 - 10.1])

    def test_what_was_sent_before_the_fault_does_not_count(self):
        load = producer((0, 10.0, 10.2), (1, 10.3, 15.1))
        self.assertEqual(self.measured([load], script(10.1, 16)).pauses, [5.0])

    def test_the_first_producer_that_comes_back_counts(self):
        slow, fast = producer((0, 10.5, 30.0)), producer((0, 10.5, 12.1), (1, 12.2, 13.0))
        self.assertEqual(self.measured([slow, fast], script(10.1, 14)).pauses, [2.0])

    def test_a_handover_is_the_longest_pause_within_the_window(self):
        load = producer((0, 10.2, 10.25), (1, 10.5, 11.75), (2, 11.8, 12.0), (3, 12.1, 20.0))
        self.assertEqual(self.measured([load], script(10.0, 13)).pauses, [1.5])

    def test_past_the_bound_is_told(self):
        load = producer((0, 10.2, 15.0))
        self.assertEqual(len(self.measured([load], script(10.0, 16)).over), 1)
        self.assertEqual(self.measured([load], script(10.0, 16), bound=None).over, [])

    def test_a_partition_that_never_came_back_is_told(self):
        found = self.measured([producer((0, 10.2, 20.0))], script(10.0, 16), bound=None)
        self.assertEqual((len(found.over), found.pauses), (1, []))

    def test_percentiles(self):
        self.assertEqual(failover.percentile([3, 1, 2], 0.5), 2)
        self.assertEqual(failover.percentile([1, 2], 0.5), 1)


if __name__ == "__main__":
    unittest.main()
