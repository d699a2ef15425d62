"""Gradients that are parts of sums and that each rank clips by the norm of its part are seen; others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.watch.injecting import INJECT, python

NEEDED = pytest.mark.skipif(
    not hasattr(torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
    reason="up to 2.5 torch clips in one function, in which the norm is not seen",
)
SCRIPT = """
    import json, os, sys, tempfile, torch
    import torch.distributed as dist
    from torch import nn
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.calls import ring
    from ddpdoctor_watch.models import modules
    from ddpdoctor_watch.training import clips
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    ring.begin_round()
    opened = modules.is_open
    modules.is_open = lambda: True   # as in a step that is looked at
    clip = torch.nn.utils.clip_grad_norm_
    out = {}

    def told(parameters, most=1.0, **more):
        norm = clip(parameters, most, **more)
        # A group of one: its parts are the whole, which is for the members to say.
        return clips._last is not None, float(norm)

    members = lambda self, number: (0, 1)
    type(ring._ring.groups).members = members

    def part(values):
        own = torch.empty(len(values))
        dist.reduce_scatter_tensor(own, torch.tensor(values))
        return own

    one = nn.Parameter(torch.zeros(2))
    one.grad = part([3.0, 4.0]).div_(1)
    out["part"] = told([one])
    out["taken"] = clips.take([one])
    out["again"] = clips.take([one])
    other = nn.Parameter(torch.zeros(1))
    other.grad = torch.ones(1)
    one.grad = part([3.0, 4.0])
    out["beside another"] = told([one, other])
    whole = torch.tensor([6.0, 8.0, 0.0, 0.0])
    dist.reduce(whole, dst=0)
    one.grad = whole[:2]
    out["reduced"] = told([one], 5.0), clips.take([other, one])
    dist.reduce(torch.ones(1), dst=0)
    one.grad = part([0.3, 0.4])
    out["small"] = told([one]), clips.take([one])
    ring.begin_round()
    out["of the round before"] = told([one])
    one.grad = part([3.0, float("nan")])
    out["not finite"] = told([one])[0], clips.take([one])
    one.grad = part([3.0, 4.0])
    out["of another optimizer"] = told([one])[0], clips.take([other])
    modules.is_open = opened
    one.grad = part([3.0, 4.0])
    out["of a step that is not looked at"] = told([one])[0]
    modules.is_open = lambda: True
    ring.begin_round()
    other.grad = torch.full([1], 8.0)
    out["of a stage"] = told([other])[0], clips.take([other])
    parameter = nn.Parameter(distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,))))
    parameter.grad = parameter.detach().clone()
    clip([parameter], 1.0)
    out["of DTensors"] = clips._last
    frame = out["taken"][1][0]
    out["taken"] = [out["taken"][0], frame[2], out["taken"][2]]
    out["of a stage"] = out["of a stage"][0], out["of a stage"][1][0], out["of a stage"][1][2]
    for name in ("reduced", "small"):
        out[name] = [out[name][0][0], out[name][1][0]]
    print(json.dumps(out))
"""


@NEEDED
def test_clips_of_parts_of_sums_are_seen(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "part": [True, 5.0],
        "taken": [0.2, "told", [0, 1]],
        "again": None,
        "beside another": [True, pytest.approx(26**0.5)],
        "reduced": [True, 0.5],
        "small": [True, 1.0],
        "of the round before": [True, 0.5],
        "not finite": [True, None],
        "of another optimizer": [True, None],
        "of a step that is not looked at": False,
        "of a stage": [True, 0.125, []],
        "of DTensors": None,
    }


COMPILED = """
    import json, sys, torch
    from torch import nn
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.training import clips

    seen = []
    real = clips.modules.is_open
    clips.modules.is_open = lambda: seen.append(1) or real()
    one = nn.Parameter(torch.zeros(2))

    def step(values):
        one.grad = values.clone()
        return torch.nn.utils.clip_grad_norm_([one], 1.0)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    told = [float(compiled(torch.tensor([3.0, 4.0]))), len(seen), float(step(torch.tensor([3.0, 4.0]))), len(seen)]
    print(json.dumps([told, torch.nn.utils.clip_grads_with_norm_.__code__.co_filename.endswith("clip_grad.py")]))
"""


@NEEDED
def test_the_compiler_goes_through_a_clip_without_a_break(tmp_path: Path) -> None:
    done = python(tmp_path, COMPILED, str(INJECT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[5.0, 0, 5.0, 1], True]
