"""Checks of source that was read and not run: what ranks do differently, and lines that are wrong as they stand."""

from ddpdoctor_checks.lint.data import find_epoch_unset, find_unsharded
from ddpdoctor_checks.lint.devices import find_device_by_rank, find_device_unset, find_tensor_on_cpu
from ddpdoctor_checks.lint.files import (
    find_directory_raced,
    find_download_raced,
    find_load_unmapped,
    find_prefix,
    find_read_early,
    find_write_raced,
)
from ddpdoctor_checks.lint.findings import find_uneven_calls
from ddpdoctor_checks.lint.gathers import find_gathered
from ddpdoctor_checks.lint.launching import (
    find_fixed_file,
    find_group_order,
    find_local_rank_option,
    find_port_literal,
    find_spawn_unguarded,
    find_switches,
)
from ddpdoctor_checks.lint.metrics import find_evaluation_padded, find_unreduced
from ddpdoctor_checks.lint.models import find_bypassed, find_changed
from ddpdoctor_checks.lint.pointing import find_roots, find_unmatched, find_unwaited
from ddpdoctor_checks.lint.reductions import find_redundant, find_unenclosed, find_unwrapped
from ddpdoctor_checks.lint.setups import find_device_ids, find_reentrant, find_small_batches, find_undestroyed
from ddpdoctor_checks.lint.splits import find_shares, find_splits, find_workers
from ddpdoctor_checks.lint.wrapping import find_data_parallel

__all__ = [
    "find_bypassed",
    "find_changed",
    "find_data_parallel",
    "find_device_by_rank",
    "find_device_ids",
    "find_device_unset",
    "find_directory_raced",
    "find_download_raced",
    "find_epoch_unset",
    "find_evaluation_padded",
    "find_fixed_file",
    "find_gathered",
    "find_group_order",
    "find_load_unmapped",
    "find_local_rank_option",
    "find_port_literal",
    "find_prefix",
    "find_read_early",
    "find_redundant",
    "find_reentrant",
    "find_roots",
    "find_shares",
    "find_small_batches",
    "find_spawn_unguarded",
    "find_splits",
    "find_switches",
    "find_tensor_on_cpu",
    "find_undestroyed",
    "find_unenclosed",
    "find_uneven_calls",
    "find_unmatched",
    "find_unreduced",
    "find_unsharded",
    "find_unwaited",
    "find_unwrapped",
    "find_workers",
    "find_write_raced",
]
