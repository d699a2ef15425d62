"""Checks of jobs that do not get on: who waits for whom, and which rank holds them.

Made of looks at all ranks (`ddpdoctor.evidence.standstill`): their open calls, their stacks twice, their processes.
*Proof* is a rank that can never go on, for it waits for one that is gone or that waits for it; *suspicion* is a rank
outside of every collective that does not move.
"""

from ddpdoctor_checks.hangs.findings import (
    find_early_exit,
    find_group_mismatch,
    find_larger_world,
    find_lost_large_packets,
    find_lost_link,
    find_missing_call,
    find_other_call,
    find_progress,
    find_stalled,
    find_symmetric,
    find_uneven_batches,
    find_unjoined_ranks,
    find_unmatched,
)

__all__ = [
    "find_early_exit",
    "find_group_mismatch",
    "find_larger_world",
    "find_lost_large_packets",
    "find_lost_link",
    "find_missing_call",
    "find_other_call",
    "find_progress",
    "find_stalled",
    "find_symmetric",
    "find_uneven_batches",
    "find_unjoined_ranks",
    "find_unmatched",
]
