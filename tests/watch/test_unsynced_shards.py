"""Modules of fully_shard that were told not to reduce the gradients of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddpdoctor.watch.inject.ddpdoctor_watch.models import layouts


class FSDPModule(torch.nn.Module):
    """A module as fully_shard leaves it, as far as it is asked."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def _get_fsdp_state(self) -> Any:
        return SimpleNamespace(_fsdp_param_group=self.part)


class DTensor:
    """A sharded parameter."""


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 0),
        ({"reduce_grads": True, "all_reduce_grads": True, "_is_hsdp": True}, 0),
        ({"reduce_grads": False}, 1),
        ({"all_reduce_grads": False, "_is_hsdp": True}, 1),
        ({"all_reduce_grads": False, "_is_hsdp": False}, 0),
    ],
    ids=["of another torch", "all on", "no reduction", "no all-reduce of replicas", "no replicas"],
)
def test_modules_that_reduce_no_gradients_of_a_step(flags: dict[str, bool], count: int) -> None:
    held = DTensor()
    part = SimpleNamespace(fsdp_params=[SimpleNamespace(sharded_param=held)], **flags)
    assert layouts.count_unsynced([FSDPModule(part)], [held]) == count
    assert layouts.count_unsynced([FSDPModule(part)], [DTensor()]) == 0
