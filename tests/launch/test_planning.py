"""From a request and the environment to a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ddpdoctor.errors import UsageError
from ddpdoctor.evidence import Cpus, Evidence, Launch, NodeFacts
from ddpdoctor.gather.devices.accelerators import count_nvidia_devices
from ddpdoctor.launch import planning
from ddpdoctor.launch.local import LocalFindings
from ddpdoctor.launch.planning import complete_plan, make_plan
from ddpdoctor.launch.request import CheckRequest

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29400",
}


def local(*, accelerators: tuple[str, ...] = (), nccl: bool = False, cores: float = 2.0) -> LocalFindings:
    facts = NodeFacts(0, "node-a", cpus=Cpus(2, 2))
    return LocalFindings(Evidence(launch=Launch()), facts, accelerators, nccl, cores)


def test_alone_it_meets_itself_on_a_free_port() -> None:
    plan = make_plan(CheckRequest(nproc=4), "/tmp/x", {})
    assert plan.launch.master_addr == "127.0.0.1"
    assert plan.launch.master_port is not None
    assert plan.launch.master_port > 1023
    assert plan.launch.rdzv_backend == "static"
    assert not plan.meets


def test_several_nodes_meet_at_the_master() -> None:
    request = CheckRequest(nproc=8, nnodes=2, node_rank=1, master_addr="node-a")
    plan = make_plan(request, "/tmp/x", {})
    assert plan.launch.rdzv_endpoint == "node-a:29500"
    assert (plan.node, plan.party, plan.parties) == (1, 1, 2)
    assert not plan.hosting
    assert complete_plan(plan, request, local()).first_rank == 8


def test_an_endpoint_means_c10d_as_for_torchrun() -> None:
    plan = make_plan(CheckRequest(nnodes=2, rdzv_endpoint="[fe80::1]:1234"), "/tmp/x", {})
    assert plan.launch.rdzv_backend == "c10d"
    assert (plan.launch.master_addr, plan.launch.master_port) == ("fe80::1", 1234)
    assert plan.launch.node_rank is None


def test_several_nodes_without_a_meeting_place_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--node-rank and --master-addr missing"):
        make_plan(CheckRequest(nnodes=2), "/tmp/x", {})


def test_under_torchrun_each_process_is_one_rank() -> None:
    plan = make_plan(CheckRequest(), "/tmp/x", TORCHRUN)
    assert plan.external
    assert plan.agent_store
    assert (plan.party, plan.parties, plan.node, plan.leads) == (3, 4, 1, False)
    assert plan.launch.launcher == "torchrun"


def test_an_explicit_world_wins_over_the_environment_and_keeps_it_as_evidence() -> None:
    plan = make_plan(CheckRequest(nproc=2), "/tmp/x", TORCHRUN)
    assert not plan.external
    assert plan.launch.variables["WORLD_SIZE"] == "4"


def test_the_variables_of_torchrun_options_count() -> None:
    environ = {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "head",
        "PET_NPROC_PER_NODE": "auto",
    }
    plan = make_plan(CheckRequest(), "/tmp/x", environ)
    assert (plan.parties, plan.party, plan.launch.master_addr) == (2, 1, "head")
    plan = make_plan(CheckRequest(nnodes=3, master_addr="other"), "/tmp/x", environ)
    assert (plan.parties, plan.launch.master_addr) == (3, "other")


def test_a_variable_that_is_no_number_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="PET_NNODES=1:4"):
        make_plan(CheckRequest(), "/tmp/x", {"PET_NNODES": "1:4"})


def test_every_stage_of_the_world_brings_the_rendezvous() -> None:
    plan = make_plan(CheckRequest(stages=("bandwidth",)), "/tmp/x", {})
    assert plan.stages == ("rendezvous", "bandwidth")
    assert make_plan(CheckRequest(stages=("facts",)), "/tmp/x", {}).stages == ("facts",)


@pytest.mark.parametrize(
    ("accelerators", "nccl", "nproc", "asked", "backend", "devices"),
    [
        ((), False, 4, None, "gloo", ()),
        (("cuda:0", "cuda:1"), True, 2, None, "nccl", ("cuda:0", "cuda:1")),
        (("cuda:0",), True, 4, None, "gloo", ()),
        (("cuda:0", "cuda:1"), True, 2, "gloo", "gloo", ()),
        (("cuda:0",), True, 2, "nccl", "nccl", ("cuda:0", "cuda:1")),
    ],
)
def test_the_backend_follows_the_devices(
    accelerators: tuple[str, ...],
    nccl: bool,
    nproc: int,
    asked: str | None,
    backend: str,
    devices: tuple[str, ...],
) -> None:
    request = CheckRequest(nproc=nproc, backend=asked)
    plan = complete_plan(
        make_plan(request, "/tmp/x", {}), request, local(accelerators=accelerators, nccl=nccl)
    )
    assert (plan.launch.backend, plan.devices) == (backend, devices)


def test_without_a_number_every_accelerator_gets_a_rank() -> None:
    request = CheckRequest()
    plan = make_plan(request, "/tmp/x", {})
    assert complete_plan(plan, request, local(accelerators=("cuda:0",) * 3, nccl=True)).launch.nproc == 3
    assert complete_plan(plan, request, local()).launch.nproc == 4


def test_nproc_gpu_without_a_gpu_is_a_usage_error() -> None:
    request = CheckRequest(nproc="gpu")
    with pytest.raises(UsageError, match="no GPU"):
        complete_plan(make_plan(request, "/tmp/x", {}), request, local())


def test_limits_grow_with_the_crowd_but_not_those_that_were_set() -> None:
    request = CheckRequest(nproc=64, limits={"ddp": 5.0})
    plan = complete_plan(make_plan(request, "/tmp/x", {}), request, local(cores=2.0))
    assert plan.limits["ddp"] == 5.0
    assert plan.limits["collectives"] == 30.0 * 64 / 2 / 4
    few = dataclasses.replace(request, nproc=4)
    assert complete_plan(make_plan(few, "/tmp/x", {}), few, local()).limits["collectives"] == 30.0


SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_STEP_NODELIST": "node-a",
}


@pytest.mark.parametrize(
    ("said", "devices_of_driver", "backend"),
    [
        pytest.param({"SLURM_GPUS_PER_TASK": "1"}, 0, "nccl", id="Slurm reports it"),
        pytest.param({"SLURM_GPUS_PER_TASK": "a100:1"}, 0, "nccl", id="with a type"),
        pytest.param({}, 4, "nccl", id="the node has one for each"),
        pytest.param({}, 1, "gloo", id="four ranks share one"),
        pytest.param({"SLURM_GPUS_PER_TASK": "0"}, 0, "gloo", id="none asked for"),
    ],
)
def test_a_launcher_that_shows_each_rank_one_gpu_gives_each_rank_one(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], devices_of_driver: int, backend: str
) -> None:
    """Seen from one rank there is one GPU for four; it was taken for one that all of them share."""
    monkeypatch.setattr(planning, "count_nvidia_devices", lambda: devices_of_driver)
    request, environ = CheckRequest(), {**SRUN, **said}
    seen = local(accelerators=("cuda:0",), nccl=True)
    plan = complete_plan(make_plan(request, "/tmp/x", environ), request, seen, environ)
    assert plan.launch.backend == backend
    assert plan.devices == (("cuda:0",) * 4 if backend == "nccl" else ())


def test_drivers_list_has_all_gpus_whatever_a_process_may_use(tmp_path: Path) -> None:
    assert count_nvidia_devices(tmp_path) == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert count_nvidia_devices(tmp_path) == 2
