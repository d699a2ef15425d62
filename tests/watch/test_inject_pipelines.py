"""Stages of torch's pipelines are seen when a schedule makes a step; a rank says whether it has both ends."""

from __future__ import annotations

from pathlib import Path

from tests.watch.injecting import python

SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import stage as stages
    from ddpdoctor_watch.calls import groups
    from ddpdoctor_watch.models import layouts, pipelines

    dist.init_process_group("gloo", init_method="file://%s", rank=0, world_size=1)
    groups.list_members = lambda group: (4, 2)   # as in a larger world

    def make(index, count):
        part = torch.nn.Linear(2, 2)
        example = (torch.zeros(1, 2),)
        return stages.PipelineStage(part, index, count, torch.device("cpu"), input_args=example)

    assert pipelines.list_axes() == []
    first = make(0, 4)
    first.clear_runtime_states()   # as a schedule does before each step
    first.clear_runtime_states()
    make(2, 4).clear_runtime_states()
    assert pipelines.list_axes() == [("PipelineStage", "", (2, 4))], pipelines.list_axes()
    assert ["PipelineStage", "", [2, 4]] in layouts.describe([], [])["axes"]
    make(3, 4).clear_runtime_states()
    assert [how for how, _, _ in pipelines.list_axes()] == ["PipelineStage, first and last on one rank"]
    pipelines.after_fork()
    assert pipelines.list_axes() == []
    dist.destroy_process_group()
    print("seen")
"""


def test_stages_that_run_are_seen_by_rank(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT % (tmp_path / "store"))
    assert done.stdout.strip().endswith("seen"), done.stderr
