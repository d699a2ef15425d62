"""Pipelines of torch.distributed.pipelining: which ranks hold layers that follow each other."""

from __future__ import annotations

from ..calls import groups
from ..core import lifetime, wrapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

    from ddpdoctor.facts import strategies
else:
    from .. import strategies

MOST = 64
"""Stages of a process that are remembered."""

_stages: dict[tuple[int, int, int], tuple[str, tuple[int, ...]]] = {}
"""Index of a stage, how many there are, and id of its group -> name of the mesh's dimension, ranks."""
_chunks = 0
"""Micro-batches of the last step."""


def patch_stage(module: ModuleType) -> None:
    """See the stages of pipelines that run: a schedule clears each before a step, which does not raise."""
    wrapping.wrap(module._PipelineStageBase, "clear_runtime_states", before=_note_stage, plain=True)


@lifetime.at(lifetime.FORKED)
def after_fork() -> None:
    """A forked child starts anew."""
    _stages.clear()


def list_axes() -> list[tuple[str, str, tuple[int, ...]]]:
    """Return strategy, name and ranks of the pipelines that this rank has stages of."""
    held: dict[tuple[str, tuple[int, ...]], set[bool]] = {}
    for (index, count, _), (name, ranks) in _stages.items():
        ends = held.setdefault((name, ranks), set())
        if index in (0, count - 1):
            ends.add(index == 0)
    return [
        ((strategies.PIPELINE_LOOP if len(ends) > 1 else strategies.PIPELINE_STAGE).name, name, ranks)
        for (name, ranks), ends in held.items()
        if len(ranks) > 1
    ]


def count_stages() -> list[int]:
    """Return how many stages there are, how many this rank has, the micro-batches of a step, and the first stage.

    Empty where this rank has none.
    """
    indices = {index for index, _, _ in _stages}
    if not indices:
        return []
    return [max(count for _, count, _ in _stages), len(indices), _chunks, min(indices)]


def _note_stage(_: Any, frame: FrameType, args: tuple[Any, ...]) -> None:
    global _chunks
    stage = args[0]
    _chunks = getattr(stage, "chunks", None) or _chunks
    group = stage.group
    key = int(stage.stage_index), int(stage.num_stages), id(group)
    if key not in _stages and len(_stages) < MOST:
        _stages[key] = groups.find_dimension(group), tuple(sorted(groups.list_members(group) or ()))
