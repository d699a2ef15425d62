"""Checks of the family ENV: ranks, variables, versions, limits, threads and what earlier jobs left behind."""

from ddpdoctor_checks.environment.agreement import find_variables_differ, find_versions_differ
from ddpdoctor_checks.environment.launchers import find_launcher_conflict
from ddpdoctor_checks.environment.limits import (
    find_locked_memory_low,
    find_open_files_low,
    find_shared_memory_small,
)
from ddpdoctor_checks.environment.machines import find_clocks_differ, find_orphaned_ranks
from ddpdoctor_checks.environment.ranks import (
    find_rank_duplicated,
    find_variables_missing,
    find_world_inconsistent,
)
from ddpdoctor_checks.environment.settings import find_debug_left_on, find_workaround_left_on
from ddpdoctor_checks.environment.threads import find_threads_oversubscribed

__all__ = [
    "find_clocks_differ",
    "find_debug_left_on",
    "find_launcher_conflict",
    "find_locked_memory_low",
    "find_open_files_low",
    "find_orphaned_ranks",
    "find_rank_duplicated",
    "find_shared_memory_small",
    "find_threads_oversubscribed",
    "find_variables_differ",
    "find_variables_missing",
    "find_versions_differ",
    "find_workaround_left_on",
    "find_world_inconsistent",
]
