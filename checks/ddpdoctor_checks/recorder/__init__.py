"""Checks of recorded calls: Flight Recorder dumps matched over ranks, group by group.

The first difference of a group says what is wrong: ranks that never come to a call, calls that do not fit, calls that
have changed places. The larger part of the ranks is right; with two, both sides are shown.
"""

from ddpdoctor_checks.recorder.findings import (
    find_all_waiting,
    find_call_missing,
    find_calls_differ,
    find_groups_differ,
    find_left_early,
    find_order_swapped,
    find_two_threads,
)

__all__ = [
    "find_all_waiting",
    "find_call_missing",
    "find_calls_differ",
    "find_groups_differ",
    "find_left_early",
    "find_order_swapped",
    "find_two_threads",
]
