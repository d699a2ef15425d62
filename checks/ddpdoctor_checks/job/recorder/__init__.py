"""Checks of recorded calls: Flight Recorder dumps matched across ranks, group by group.

The first difference of a group says what is wrong: ranks that never come to a call, calls that do not fit, calls that
have changed places. The larger part of the ranks is right; with two, both sides are shown.
"""

from ddpdoctor_checks.job.recorder.recorded_calls import find_difference, find_groups_differ

__all__ = ["find_difference", "find_groups_differ"]
