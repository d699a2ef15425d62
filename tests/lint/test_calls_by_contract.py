"""Collectives that are documented as such and not called so: state dicts of sharded models, checkpoints, full tensors."""

from __future__ import annotations

import pytest

from tests.lint.judging import judge, read

HEAD = """\
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
rank = dist.get_rank()
own = StateDictOptions(strict=True)
one = StateDictOptions(full_state_dict=True)
"""


def codes(call: str) -> list[str | None]:
    """Return what is found in a script in which one rank alone comes to a call."""
    return [each.code for each in judge(read({"train.py": f"{HEAD}if rank == 0:\n    {call}\n"}))]


@pytest.mark.parametrize(
    "call",
    [
        "get_model_state_dict(model, options=one)",
        "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
        "set_model_state_dict(model, state, options=StateDictOptions(broadcast_from_rank0=True))",
        "dcp.save(state, checkpoint_id='step-1')",
        "dcp.async_save(state, checkpoint_id='step-1')",
        "FSDP.optim_state_dict(model, optimizer)",
        "weight = model.weight.full_tensor()",
        "optimizer.consolidate_state_dict()",
    ],
)
def test_calls_that_all_ranks_have_to_make(call: str) -> None:
    assert codes(call) == ["COL002"]


@pytest.mark.parametrize(
    "call",
    [
        "get_model_state_dict(model)",
        "get_model_state_dict(model, options=own)",
        "dcp.save(state, checkpoint_id='step-1', no_dist=True)",
        "dcp.save(state, checkpoint_id='step-1', process_group=pair)",
        "FSDP.state_dict_type(model, kind)",
    ],
)
def test_calls_that_one_rank_may_make(call: str) -> None:
    assert codes(call) == []
