"""Checks of jobs that train something else than they seem to, and end with exit code 0.

Made of what ranks wrote down of their steps and batches (`ddpdoctor.evidence.training`). A finding of severity
error means that the wrong was seen: parameters that differ, batches that are equal; what the hooks saw only
says why.
"""

# In the order in which reports show the rows.
from ddpdoctor_checks.training.data.draws import find_draws_repeated
from ddpdoctor_checks.training.files.resumes import find_fresh_optimizers
from ddpdoctor_checks.training.replicas.buffers import find_batch_norm, find_buffers
from ddpdoctor_checks.training.replicas.companions import find_companions
from ddpdoctor_checks.training.replicas.counts import find_skipped
from ddpdoctor_checks.training.replicas.differing import find_differing
from ddpdoctor_checks.training.replicas.whole_parts import find_left_whole, find_unequal_start

# isort: split
from ddpdoctor_checks.training.lost_gradients import find_gathered

# isort: split
from ddpdoctor_checks.training.data.repeats import find_epoch_unset, find_unsharded
from ddpdoctor_checks.training.files.loads import find_empty_loads
from ddpdoctor_checks.training.files.races import (
    find_checkpoint_raced,
    find_checkpoint_read_early,
    find_directories_raced,
    find_download_raced,
)
from ddpdoctor_checks.training.numerics import find_nonfinite, find_scalers

# isort: split
from ddpdoctor_checks.training.communication import find_communication_bound
from ddpdoctor_checks.training.data.model_peers import find_model_peers_apart
from ddpdoctor_checks.training.data.shares import (
    find_evaluation_padded,
    find_sampler_differs,
    find_split_differs,
    find_uneven_loaders,
)
from ddpdoctor_checks.training.pipeline import find_bubble
from ddpdoctor_checks.training.reductions import find_divided_twice, find_loss_shared
from ddpdoctor_checks.training.reference.against import find_reference_differs
from ddpdoctor_checks.training.searches import find_search
from ddpdoctor_checks.training.shard_norms import find_scaled_apart
from ddpdoctor_checks.training.sharded import find_loss_uneven, find_roles_wrong, find_sync_left_off
from ddpdoctor_checks.training.speed import find_loader_bound, find_straggling
from ddpdoctor_checks.training.stale_optimizers import find_stale
from ddpdoctor_checks.training.tensor_parallel import find_replicated_apart
from ddpdoctor_checks.training.usage import find_data_parallel, find_redundant, find_unenclosed

__all__ = [
    "find_batch_norm",
    "find_bubble",
    "find_buffers",
    "find_checkpoint_raced",
    "find_checkpoint_read_early",
    "find_communication_bound",
    "find_companions",
    "find_data_parallel",
    "find_differing",
    "find_directories_raced",
    "find_divided_twice",
    "find_download_raced",
    "find_draws_repeated",
    "find_empty_loads",
    "find_epoch_unset",
    "find_evaluation_padded",
    "find_fresh_optimizers",
    "find_gathered",
    "find_left_whole",
    "find_loader_bound",
    "find_loss_shared",
    "find_loss_uneven",
    "find_model_peers_apart",
    "find_nonfinite",
    "find_redundant",
    "find_reference_differs",
    "find_replicated_apart",
    "find_roles_wrong",
    "find_sampler_differs",
    "find_scaled_apart",
    "find_scalers",
    "find_search",
    "find_skipped",
    "find_split_differs",
    "find_stale",
    "find_straggling",
    "find_sync_left_off",
    "find_unenclosed",
    "find_unequal_start",
    "find_uneven_loaders",
    "find_unsharded",
]
