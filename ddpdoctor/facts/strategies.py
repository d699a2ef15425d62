"""What is true of the ways in which ranks share out a model and its data, once: one row for each strategy.

Another strategy is a row here and, where a look at its modules or tensors is needed, a function in
``ddpdoctor_watch/models/layouts.py``. Processes of a job load this too: no imports.
"""

from __future__ import annotations

DATA = "data"
"""Ranks that hold the same part of the model, or shards of it that are gathered before use: each must read other
samples, and gradients are averaged over them."""
TENSOR = "tensor"
"""Ranks that compute one layer together: they must read the same samples."""
PIPELINE = "pipeline"
"""Ranks that hold layers which follow each other."""
EXPERT = "expert"
"""Ranks that hold different experts and exchange tokens."""
CONTEXT = "context"
"""Ranks that hold parts of one sequence."""
UNKNOWN = "unknown"


class Strategy:
    """One way to share out a model.

    Args:
        name: as torch's documentation calls it.
        role: of the ranks of its group to each other, as above.
        shards: each of them holds another piece of a parameter.
    """

    __slots__ = ("name", "role", "shards")

    def __init__(self, name: str, role: str, shards: bool) -> None:
        self.name, self.role, self.shards = name, role, shards


DDP = Strategy("DistributedDataParallel", DATA, False)
FSDP1 = Strategy("FullyShardedDataParallel", DATA, True)
FSDP2 = Strategy("fully_shard", DATA, True)
DTENSOR = Strategy("parallelize_module", TENSOR, True)
"""A dimension of a DTensor's mesh that is none of those over which fully_shard shards."""
PIPELINE_STAGE = Strategy("PipelineStage", PIPELINE, False)
PIPELINE_LOOP = Strategy("PipelineStage, first and last on one rank", PIPELINE, False)
"""Seen by the rank that has both, as in V schedules: it reads the inputs and the labels."""
BY_HAND = Strategy("averaged by the program", DATA, False)
"""The program's own collectives carry all gradients over a group between a backward and the optimizer's step."""
STRATEGIES = {
    each.name: each for each in (DDP, FSDP1, FSDP2, DTENSOR, PIPELINE_STAGE, PIPELINE_LOOP, BY_HAND)
}

_NAMES = {
    DATA: "dp data ddp batch replicate dp_replicate shard dp_shard fsdp dp_mod_ep hsdp zero data_parallel",
    TENSOR: "tp tensor model mp tensor_parallel model_parallel mp_group row col",
    PIPELINE: "pp pipe pipeline stage stages pipeline_parallel",
    EXPERT: "ep expert experts expert_parallel moe",
    CONTEXT: "cp sp seq context sequence context_parallel sequence_parallel ulysses ring",
}
ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}
"""Name of a mesh dimension -> what it usually stands for (torchtitan, Megatron-LM, torch's own tutorials)."""


def find_role(name: str) -> str:
    """Return what a dimension of a mesh stands for by its name; `UNKNOWN` where that says nothing."""
    return ROLES.get(name.lower().replace("-", "_").rstrip("0123456789"), UNKNOWN)
