"""By what gradients of a sharded model are scaled between the backward and the step, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.watch.inject.ddpdoctor_watch.training.scaling import find_scaling
from tests.watch.injecting import torchrun

TRAIN = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        for micro in range(2):
            model(torch.randn(4, 8, generator=generator)).sum().backward()
        held = [p.grad.to_local() for p in model.parameters()]
        for g in held:
            g.clamp_(-0.01, 0.01) if step == 3 else g.mul_(0.5 if step else 0.25 + dist.get_rank())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_scaling_is_measured_behind_what_fully_shard_does_at_the_end(tmp_path: Path) -> None:
    done = torchrun(tmp_path, TRAIN)
    assert done.returncode == 0, done.stderr
    # The first look only finds the model; of both micro-batches of the later steps gradients are reduced.
    paces = [
        [(each["steps"], each["backwards"], each["synced"]) for each in rank.all("pace")]
        for rank in done.ranks()
    ]
    assert paces == [[(1, 2, 2), (2, 4, 4)]] * 2
    steps = [{each["step"]: each for each in rank.all("step")} for rank in done.ranks()]
    told = [[each[step].get("scaled") for each in steps] for step in (1, 2, 4)]
    assert told[0] == pytest.approx([0.25, 1.25], rel=1e-4)
    assert told[1] == pytest.approx([0.5, 0.5], rel=1e-4)
    assert told[2] == [None, None]  # elements that are clamped are not scaled
    lines = {each[1]["scaled_at"][0][1] for each in steps}
    assert lines == {next(n for n, text in enumerate(TRAIN.splitlines(), 1) if "mul_(" in text)}


def test_line_between_backward_and_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("loss.backward()\nlog(x)\nclip_all(model)\noptimizer.step()\n")
    name = str(script)
    loss, step = [[name, 1, "train"], [name, 9, "main"]], [[name, 4, "train"], [name, 9, "main"]]
    assert find_scaling(loss, step) == [[name, 3, "train"], [name, 9, "main"]]
    assert find_scaling([["other.py", 1, "train"]], step) == step
    assert find_scaling(step, loss) == loss
