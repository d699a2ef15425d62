"""`ddpdoctor check` on hosts that were started with other words, variables or versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checking import Doctor, require_named, static
from .harness import Hosts

pytestmark = pytest.mark.root

MODEL = """
import torch

def make():
    return torch.nn.Linear(4, {width}), torch.ones(2, 4)
"""


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


@pytest.mark.long
def test_node_rank_that_two_hosts_claim_names_both(doctor: Doctor) -> None:
    with Hosts(3) as hosts:
        told = doctor.ask(hosts, lambda host: [*static(hosts)(host), "--node-rank", str(min(host.index, 1))])
    second = next(each.host for each in told if each.own["evidence"]["rendezvous"][0]["joined_nodes"] == [])
    found = require_named(told, "ENV002", nodes=["node-b", "node-c"], ranks=[1], unheard=[second])
    assert "both claim node rank 1" in found["message"]
    assert [each.name for each in told] == ["node-0", "node-1", "node-1"]


@pytest.mark.long
def test_different_worlds_are_named_with_their_sizes(doctor: Doctor) -> None:
    with Hosts(2) as hosts:
        told = doctor.ask(
            hosts, lambda host: [*static(hosts, nodes=2 + host.index)(host), "--join-timeout", "8"]
        )
    found = require_named(told, "ENV003", nodes=["node-a", "node-b"])
    assert "node-a for 2 and node-b for 3 ranks" in found["message"]


@pytest.mark.long
def test_differing_variables_are_named_with_their_ranks(doctor: Doctor) -> None:
    values = {"node-a": "Tree", "node-b": "Ring", "node-c": "Tree"}
    with Hosts(3) as hosts:
        told = doctor.ask(
            hosts,
            static(hosts),
            env=lambda host: {
                "NCCL_ALGO": values[host.name],
                "TORCH_NCCL_BLOCKING_WAIT": "1" if host.index == 1 else None,
            },
        )
    found = require_named(told, "ENV004", exit_code=0, nodes=["node-b"], ranks=[1])
    assert "NCCL_ALGO" in found["message"]
    assert "TORCH_NCCL_BLOCKING_WAIT" in found["message"]


@pytest.mark.long
def test_differing_script_is_named(doctor: Doctor, tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        for host in hosts:
            folder = tmp_path / f"code-{host.name}"
            folder.mkdir()
            note = "" if host.index == 0 else "# an edit that reached one host only\n"
            (folder / "mine.py").write_text(note + MODEL.format(width=3))
        told = doctor.ask(
            hosts,
            lambda host: [
                *static(hosts, "--skip", "backends,collectives,bandwidth")(host),
                "--model",
                f"{tmp_path}/code-{host.name}/mine.py:make",
            ],
        )
    found = require_named(told, "ENV005", exit_code=0, nodes=["node-a", "node-b"])
    assert "the file of --model" in found["message"]


@pytest.mark.long
def test_contradicting_launcher_variables_are_named_with_their_hosts(doctor: Doctor) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "2"}
    variables: dict[str, dict[str, str | None]] = {
        "node-a": {**slurm},
        "node-b": {"NODE_RANK": "5", "PET_NNODES": "4"},
    }
    with Hosts(2) as hosts:
        told = doctor.ask(hosts, static(hosts), env=lambda host: variables[host.name])
    require_named(told, "ENV006", exit_code=0)
    found = {each["message"]: each["nodes"] for each in told[0].findings("ENV006")}
    assert sorted(found.values()) == [["node-a"], ["node-b"], ["node-b"]], found
    assert all(
        any(word in text for text in found) for word in ("SLURM_NTASKS=8", "NODE_RANK=5", "PET_NNODES=4")
    )
