"""Checks of jobs that failed: who failed first, why, and who only followed.

One judgement over all processes (`ddpdoctor_checks.crash.judging.diagnose`) is made once; each check tells the part
of it that has its code.
"""

# In the order in which reports show the checks. What ended the job comes first whatever its place here.
from ddpdoctor_checks.crash.errors import (
    find_aborted_at_exit,
    find_exception,
    find_exited,
    find_not_started,
)

# isort: split
from ddpdoctor_checks.crash.signals import (
    find_bus_error,
    find_killed,
    find_killed_for_memory,
    find_segmentation_fault,
)

# isort: split
from ddpdoctor_checks.crash.device_errors import find_device_error, find_device_memory

# isort: split
from ddpdoctor_checks.crash.wrapper import (
    find_graph_changed,
    find_ready_twice,
    find_unused,
    find_unused_somewhere,
)

# isort: split
from ddpdoctor_checks.crash.wrapping import (
    find_attribute,
    find_buffer_modified,
    find_device_ids,
    find_model_differs,
    find_nothing_trainable,
)

# isort: split
from ddpdoctor_checks.crash.collectives import (
    find_collective_missing,
    find_finished_early,
    find_mismatch,
    find_timeout,
)

# isort: split
from ddpdoctor_checks.crash.devices import (
    find_backend_failed,
    find_backend_unavailable,
    find_device_mismatch,
    find_device_out_of_range,
    find_device_shared,
    find_device_unset,
    find_device_unsupported,
    find_library_conflict,
    find_peer_access,
)

# isort: split
from ddpdoctor_checks.crash.network import (
    find_address_family_noise,
    find_file_stale,
    find_host_unmatched,
    find_interface_missing,
    find_link_lost,
    find_loopback,
    find_master_unresolvable,
    find_node_lost,
    find_peer_unresolvable,
    find_port_invalid,
    find_port_taken,
    find_ports_blocked,
    find_ranks_missing,
)

# isort: split
from ddpdoctor_checks.crash.environment import (
    find_hangup,
    find_local_rank,
    find_memory_not_locked,
    find_open_files,
    find_rank_duplicated,
    find_restart_loop,
    find_shared_memory_full,
    find_spawn_unguarded,
    find_uninitialised,
    find_variables_missing,
)

# isort: split
from ddpdoctor_checks.crash.sizes import find_world_sizes

# isort: split
from ddpdoctor_checks.crash.files import find_directory_raced, find_prefix, find_read_early

__all__ = [
    "find_aborted_at_exit",
    "find_address_family_noise",
    "find_attribute",
    "find_backend_failed",
    "find_backend_unavailable",
    "find_buffer_modified",
    "find_bus_error",
    "find_collective_missing",
    "find_device_error",
    "find_device_ids",
    "find_device_memory",
    "find_device_mismatch",
    "find_device_out_of_range",
    "find_device_shared",
    "find_device_unset",
    "find_device_unsupported",
    "find_directory_raced",
    "find_exception",
    "find_exited",
    "find_file_stale",
    "find_finished_early",
    "find_graph_changed",
    "find_hangup",
    "find_host_unmatched",
    "find_interface_missing",
    "find_killed",
    "find_killed_for_memory",
    "find_library_conflict",
    "find_link_lost",
    "find_local_rank",
    "find_loopback",
    "find_master_unresolvable",
    "find_memory_not_locked",
    "find_mismatch",
    "find_model_differs",
    "find_node_lost",
    "find_not_started",
    "find_nothing_trainable",
    "find_open_files",
    "find_peer_access",
    "find_peer_unresolvable",
    "find_port_invalid",
    "find_port_taken",
    "find_ports_blocked",
    "find_prefix",
    "find_rank_duplicated",
    "find_ranks_missing",
    "find_read_early",
    "find_ready_twice",
    "find_restart_loop",
    "find_segmentation_fault",
    "find_shared_memory_full",
    "find_spawn_unguarded",
    "find_timeout",
    "find_uninitialised",
    "find_unused",
    "find_unused_somewhere",
    "find_variables_missing",
    "find_world_sizes",
]
