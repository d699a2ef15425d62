"""Only the table's variables are kept, scrubbed, and each has its class."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence.variables import AGREEMENTS, FREE, NODE, RANK, WORLD, agreement, all_rules, find_rule
from ddpdoctor.gather.variables import MAX_VALUE, allowed_variables


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("MASTER_ADDR", WORLD),
        ("WORLD_SIZE", WORLD),
        ("TORCH_DISTRIBUTED_DEBUG", WORLD),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", WORLD),
        ("NCCL_P2P_DISABLE", WORLD),
        ("NCCL_IB_PKEY", WORLD),
        ("GLOO_SOCKET_IFNAME", NODE),
        ("NCCL_SOCKET_IFNAME", NODE),
        ("LOCAL_WORLD_SIZE", NODE),
        ("SLURMD_NODENAME", NODE),
        ("RANK", RANK),
        ("CUDA_VISIBLE_DEVICES", RANK),
        ("SLURM_PROCID", RANK),
        ("OMPI_COMM_WORLD_LOCAL_RANK", RANK),
        ("NCCL_DEBUG", FREE),
        ("OMP_NUM_THREADS", FREE),
        ("LD_LIBRARY_PATH", FREE),
        ("PET_RDZV_ENDPOINT", WORLD),
        ("HOME", None),
        ("SLURM_JOB_USER", None),
        ("HF_TOKEN", None),
        ("ACCELERATE_API_KEY", None),
        ("PET_SECRET", None),
        ("", None),
    ],
)
def test_classes(name: str, wanted: str | None) -> None:
    assert agreement(name) == wanted


def test_the_table_is_consistent() -> None:
    patterns = [rule.pattern for rule in all_rules()]
    assert len(patterns) == len(set(patterns))
    assert {rule.agreement for rule in all_rules()} == set(AGREEMENTS)
    assert all(find_rule(p.rstrip("*") + "X" * p.endswith("*")) is not None for p in patterns)


def test_a_longer_prefix_goes_first() -> None:
    assert agreement("TORCH_FR_BUFFER_SIZE") == FREE
    assert agreement("TORCH_ANYTHING_ELSE") == WORLD


def test_only_allowed_variables_are_kept_and_scrubbed() -> None:
    environ = {
        "RANK": "1",
        "HOME": "/home/alice",
        "WANDB_API_KEY": "x" * 40,
        "LD_LIBRARY_PATH": "/home/alice/lib:/usr/lib",
        "PET_RDZV_ENDPOINT": "https://alice:hunter2@etcd:2379",
        "ACCELERATE_LONG": "y" * 5000,
    }
    kept = allowed_variables(environ)
    assert set(kept) == {"RANK", "LD_LIBRARY_PATH", "PET_RDZV_ENDPOINT", "ACCELERATE_LONG"}
    assert kept["LD_LIBRARY_PATH"] == "~/lib:/usr/lib"
    assert kept["PET_RDZV_ENDPOINT"] == "https://***@etcd:2379"
    assert len(kept["ACCELERATE_LONG"]) == MAX_VALUE
