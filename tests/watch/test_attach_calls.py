"""Which call a stack stands in, and for how long a thread has slept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.watch.attach.sleep import read_sleep
from ddpdoctor.watch.attach.stack_calls import find_call
from ddpdoctor.watch.readers.records import Shortener
from tests.watch.launching import wait_for

SITE = "/venv/lib/python3.11/site-packages/torch"
C10D, LOGGER = f"{SITE}/distributed/distributed_c10d.py", f"{SITE}/distributed/c10d_logger.py"
DDP, MODULE = f"{SITE}/nn/parallel/distributed.py", f"{SITE}/nn/modules/module.py"
EVAL = f"{SITE}/_dynamo/eval_frame.py"
GENERATED = "torch.ops._c10d_functional.wait_tensor.default(buf1)"
OWN = Frame("train.py", 88, "step", "dist.all_reduce(loss)")


def stack(*places: tuple[str, str], own: Frame = OWN) -> list[Frame]:
    return [*(Frame(file, 1, function) for file, function in places), own]


@pytest.mark.parametrize(
    ("frames", "op"),
    [
        (stack((C10D, "all_reduce"), (LOGGER, "wrapper")), "all_reduce"),
        (stack((C10D, "all_gather"), (LOGGER, "wrapper"), (C10D, "all_gather_object"), (LOGGER, "wrapper")),
         "all_gather_object"),
        (stack((f"{SITE}/distributed/rendezvous.py", "_create_c10d_store"), (C10D, "init_process_group")),
         "init_process_group"),
        (stack((C10D, "recv"), (LOGGER, "wrapper")), "recv"),
        (stack((f"{SITE}/distributed/utils.py", "_verify_param_shape_across_processes"), (DDP, "__init__")),
         "DistributedDataParallel"),
        (stack((DDP, "_sync_buffers"), (DDP, "_pre_forward"), (DDP, "forward"), (MODULE, "_call_impl")),
         "DistributedDataParallel.forward"),
        (stack((f"{SITE}/autograd/graph.py", "_engine_run_backward"), (f"{SITE}/_tensor.py", "backward")), "backward"),
        (stack((f"{SITE}/distributed/_functional_collectives.py", "wait_tensor")), "wait_tensor"),
        ([Frame("train.py", 9, "step", "works[-1].wait()")], "work.wait"),
        (stack((C10D, "all_gather_single"), (LOGGER, "wrapper")), "all_gather_single"),
        (stack((C10D, "reduce_scatter_single"), (LOGGER, "wrapper"), (EVAL, "_fn")), "reduce_scatter_single"),
        (stack((C10D, "a_name_of_later_releases"), (LOGGER, "wrapper")), "a_name_of_later_releases"),
        ([Frame("/tmp/torchinductor_me/ab/cab.py", 40, "call", GENERATED), *stack((EVAL, "_fn"))], "wait_tensor"),
        (stack((DDP, "_pre_forward"), (DDP, "forward"), (MODULE, "_call_impl")), "DistributedDataParallel.forward"),
    ],
)  # fmt: skip
def test_the_outermost_call_of_torch_is_named(frames: list[Frame], op: str) -> None:
    call = find_call(frames)
    assert call is not None
    assert (call.op, call.ordinal, call.group) == (op, 0, "")
    assert call.point_to_point is (op == "recv")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [OWN],
        [Frame("train.py", 5, "layer", "time.sleep(5)"), *stack((DDP, "forward"), (MODULE, "_call_impl"))],
        stack((MODULE, "forward"), (DDP, "forward"), (MODULE, "_call_impl")),
        stack((f"{SITE}/serialization.py", "save")),
        stack((C10D, "get_rank")),
        stack((C10D, "_object_to_tensor")),
        [Frame("train.py", 9, "step", "stopped.wait()")],
        [Frame("my/distributed_c10d.py", 3, "all_reduce", "x")],
    ],
    ids=[
        "nothing",
        "own-line",
        "own-layer",
        "layer-of-torch",
        "saving",
        "of-no-rank",
        "not-public",
        "event",
        "own-file",
    ],
)
def test_whoever_is_outside_of_every_call_is_in_none(frames: list[Frame]) -> None:
    assert find_call(frames) is None


def test_a_thread_that_sleeps_has_slept_and_one_that_runs_has_not() -> None:
    if not Path("/proc/self/sched").exists():
        pytest.skip("this kernel does not tell")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(3)"])
    runner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    allowed = os.sched_getaffinity(0)
    try:
        wait_for(lambda: Path(f"/proc/{sleeper.pid}/wchan").read_text() not in ("", "0"), "it sleeps")
        # The scheduler forgets it where it moves the thread while that sleeps, and knows it again after the next sleep.
        wait_for(
            lambda: read_sleep([sleeper.pid]).get(sleeper.pid, 0.0) > 0.5, "it has slept for half a second"
        )
        found = read_sleep([sleeper.pid, runner.pid, 2**22 + 1])
        assert os.sched_getaffinity(0) == allowed
        assert found[sleeper.pid] < 300
        assert found.get(runner.pid, 0.0) < 100
    finally:
        for process in (sleeper, runner):
            process.kill()
            process.wait()


def test_without_the_scheduler_s_files_nothing_is_told(tmp_path: Path) -> None:
    assert read_sleep([os.getpid()], tmp_path) == {}


def test_sources_of_a_container_are_read_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").write_text("import time\ntime.sleep(5)\n")
    (frame,) = Shortener(Path("/app"), str(tmp_path)).frames([["/app/train.py", 2, "main"]])
    assert frame == Frame("train.py", 2, "main", "time.sleep(5)")
    (unread,) = Shortener(Path("/app")).frames([["/app/train.py", 2, "main"]])
    assert unread.source is None
