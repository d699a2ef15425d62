"""Checks of the family ENV: ranks, variables, versions, limits, threads and what earlier jobs left behind."""

# In the order in which reports show the checks, and in which findings of equal weight are ordered: what can
# cause the others comes first.
from ddpdoctor_checks.environment.ranks import find_rank_duplicated, find_variables_missing

# isort: split
from ddpdoctor_checks.environment.worlds import find_world_inconsistent

# isort: split
from ddpdoctor_checks.environment.launchers import find_launcher_conflict

# isort: split
from ddpdoctor_checks.environment.agreement import find_variables_differ, find_versions_differ

# isort: split
from ddpdoctor_checks.environment.limits import (
    find_locked_memory_low,
    find_open_files_low,
    find_shared_memory_small,
)

# isort: split
from ddpdoctor_checks.environment.threads import find_threads_oversubscribed

# isort: split
from ddpdoctor_checks.environment.settings import find_debug_left_on, find_workaround_left_on

# isort: split
from ddpdoctor_checks.environment.machines import find_clocks_differ, find_orphaned_ranks

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
