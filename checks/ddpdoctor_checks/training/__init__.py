"""Checks of jobs that train something else than they seem to, and end with exit code 0.

Made of what ranks wrote down of their steps and batches (`ddpdoctor.evidence.training`). A finding of severity
error means that the wrong was seen: parameters that differ, batches that are equal; what the hooks saw only
says why.
"""

from ddpdoctor_checks.training.buffers import find_batch_norm, find_buffers
from ddpdoctor_checks.training.counts import find_skipped
from ddpdoctor_checks.training.draws import find_draws_repeated
from ddpdoctor_checks.training.findings import find_parted
from ddpdoctor_checks.training.gathers import find_gathered
from ddpdoctor_checks.training.loads import find_empty_loads
from ddpdoctor_checks.training.numerics import find_nonfinite, find_scalers
from ddpdoctor_checks.training.races import (
    find_checkpoint_raced,
    find_checkpoint_read_early,
    find_directories_raced,
    find_download_raced,
)
from ddpdoctor_checks.training.repeats import find_epoch_unset, find_unsharded
from ddpdoctor_checks.training.sampling import (
    find_evaluation_padded,
    find_sampler_differs,
    find_split_differs,
    find_uneven_loaders,
)
from ddpdoctor_checks.training.searches import find_search
from ddpdoctor_checks.training.speed import find_communication_bound, find_loader_bound, find_straggling
from ddpdoctor_checks.training.usage import find_data_parallel, find_redundant, find_unenclosed

__all__ = [
    "find_batch_norm",
    "find_buffers",
    "find_checkpoint_raced",
    "find_checkpoint_read_early",
    "find_communication_bound",
    "find_data_parallel",
    "find_directories_raced",
    "find_download_raced",
    "find_draws_repeated",
    "find_empty_loads",
    "find_epoch_unset",
    "find_evaluation_padded",
    "find_gathered",
    "find_loader_bound",
    "find_nonfinite",
    "find_parted",
    "find_redundant",
    "find_sampler_differs",
    "find_scalers",
    "find_search",
    "find_skipped",
    "find_split_differs",
    "find_straggling",
    "find_unenclosed",
    "find_uneven_loaders",
    "find_unsharded",
]
