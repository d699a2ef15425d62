"""How long steps wait for shards and for stages, as a rank writes it down; on a GPU from events of a made-up device."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.facts.training_rows import WaitRow
from tests.watch.injecting import python, torchrun

SHARDED = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as parts

    dist.init_process_group("gloo")
    before = dict(vars(parts.FSDPParamGroup))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(20):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert dict(vars(parts.FSDPParamGroup)) == before  # nothing of ours is left
    dist.destroy_process_group()
"""

PIPELINE = """
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    part = torch.nn.Linear(8, 8)
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), 4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    for step in range(20):
        batch = torch.ones(8, 8)
        schedule.step(*(() if rank else (batch,)), target=batch if rank else None)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""

DEVICE = """
    from types import SimpleNamespace
    import ddpdoctor_watch.core.stopwatch as stopwatch
    from ddpdoctor_watch.core import journal
    from ddpdoctor_watch.training import waits

    now, done = [0], [True]
    stopwatch.monotonic = lambda: now[0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
        def record(self):
            self.at = device[0]
        def query(self):
            return done[0]
        def elapsed_time(self, other):
            return (other.at - self.at) / 1e6

    device = [0]
    import torch
    cuda = SimpleNamespace(Event=Event, is_initialized=lambda: True)
    torch.cuda = cuda
    waits.prints.explain_busy = lambda: None

    class FSDPParamGroup:
        _module_fqn = "layers.0"
        _all_gather_result = object()
        fsdp_params = [SimpleNamespace(sharded_param=torch.zeros(100))]
        def wait_for_unshard(self):
            now[0] += 1_000_000; device[0] += 9_000_000
            return "made"
        def post_backward(self):
            raise LookupError("theirs")

    waits.patch_parameters(SimpleNamespace(FSDPParamGroup=FSDPParamGroup))
    assert [name for _, name, _ in waits.places] == ["wait_for_unshard", "post_backward"]
    group = FSDPParamGroup()
    waits.turn(0, True)
    done[0] = False  # the device is behind: what lies between the events is all its own
    assert group.wait_for_unshard() == "made"
    try:
        group.post_backward()
    except LookupError:
        pass
    done[0] = True  # it waits for Python as well
    group.wait_for_unshard()
    device[0] += 20_000_000
    done[0] = False
    waits.turn(1, False)
    assert waits.describe() == {}  # the device has not come there
    done[0] = True
    told = waits.describe()
    assert told["waits"] == [[1, 38_000, 17_000, 0, 0, 800]], told
    assert told["waited"][0] == ["layers.0", 0, 17_000]
    assert FSDPParamGroup.wait_for_unshard.__qualname__ == "FSDPParamGroup.wait_for_unshard"
    assert waits.places

    # While a CUDA graph is recorded no event is asked for, and the step is given up.
    waits.turn(2, True)
    cuda.is_current_stream_capturing = lambda: True
    Event.query = None
    assert group.wait_for_unshard() == "made"
    assert waits._state.look is None and not waits._state.replaced
    cuda.is_current_stream_capturing = lambda: False
    waits._state.next = 0

    # What raises is said, and not done again.
    waits.turn(2, True)
    waits._measure = lambda group: 1 / 0
    assert group.wait_for_unshard() == "made"
    assert not waits.places
    waits.turn(3, True)
    assert group.wait_for_unshard() == "made"
    print("told")
"""


@pytest.mark.long
def test_waiting_for_shards_is_written_down(tmp_path: Path) -> None:
    done = torchrun(tmp_path, SHARDED)
    assert done.returncode == 0, done.stderr
    for rank in done.ranks():
        told = rank.all("times")[-1]
        rows = [WaitRow(*row) for row in told["waits"]]
        assert [row.step for row in rows] == list(range(1, 13))
        # Weights and biases of three layers, for forward and backward but where they are kept.
        assert all(3 * 4160 * 4 <= row.bytes <= 6 * 4160 * 4 for row in rows)
        assert all(
            0 < row.gather <= row.took and 0 < row.reduce <= row.took and not row.stage for row in rows
        )
        assert {name for name, _, _ in told["waited"]} == {"0", "1", "2"}
        assert told["pipeline"] == []


@pytest.mark.long
def test_waiting_for_stages_is_written_down(tmp_path: Path) -> None:
    done = torchrun(tmp_path, PIPELINE)
    assert done.returncode == 0, done.stderr
    for number, rank in enumerate(done.ranks()):
        told = rank.all("times")[-1]
        rows = [WaitRow(*row) for row in told["waits"]]
        assert len(rows) >= 5
        assert all(row.stage and not row.gather for row in rows)
        assert told["pipeline"] == [2, 1, 4, number]
        (line,) = {frame[1] for frame in told["waited_at"][:1]}
        assert "schedule.step(" in PIPELINE.splitlines()[line - 1]


def test_on_a_gpu_the_time_between_events_counts_without_that_of_python(tmp_path: Path) -> None:
    done = python(tmp_path, DEVICE, check=False)
    assert done.stdout.strip().endswith("told"), done.stderr
    (trouble,) = done.every("trouble")
    assert trouble["where"] == "waits"
