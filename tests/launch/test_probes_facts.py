from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import exact_values, smoke
from ddpdoctor.launch.probes.facts import rank_facts, read_uuid, read_versions
from tests.launch.worlds import run_world


def emit_facts(ctx: RankContext) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["SOME_PASSWORD"] = "hunter2"
    ctx.emit("ranks", rank_facts(ctx))


def test_each_rank_describes_itself_without_a_group(tmp_path: Path) -> None:
    ranks = run_world(emit_facts, 2, tmp_path, group=False).evidence.ranks
    assert [(each.rank, each.local_rank, each.world_size, each.device) for each in ranks] == [
        (0, 0, 2, "cpu"),
        (1, 1, 2, "cpu"),
    ]
    assert ranks[0].pid != ranks[1].pid
    assert ranks[0].versions["torch"] == torch.__version__
    assert ranks[0].threads == 1
    assert ranks[0].variables["MASTER_ADDR"] == "localhost"
    assert "SOME_PASSWORD" not in ranks[0].variables


def test_versions_leave_out_what_this_torch_does_not_have() -> None:
    versions = read_versions()
    assert versions["python"].count(".") == 2
    assert all(versions.values())
    assert ("cuda" in versions) == (torch.version.cuda is not None)


def test_the_uuid_of_a_gpu_has_the_form_of_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12345678-aaaa")
    )
    assert read_uuid("cuda:1") == "GPU-12345678-aaaa"
    assert read_uuid("cpu") is None


def test_a_device_that_is_not_there_has_no_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise AssertionError("Invalid device id")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    assert read_uuid("cuda:7") is None


def test_a_healthy_cpu_passes_its_smoke_test() -> None:
    (row,) = smoke.smoke_device(3, "cpu")
    assert (row.node, row.device, row.kind, row.ok, row.error) == (3, "cpu", "compute", True, None)
    assert row.seconds is not None
    assert row.seconds > 0


def test_a_device_that_miscalculates_is_reported_with_values(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__matmul__

    def miscalculate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = original(left, right)
        return product + 1 if product.dtype is torch.float32 else product

    monkeypatch.setattr(torch.Tensor, "__matmul__", miscalculate)
    (row,) = smoke.smoke_device(0, "cpu")
    assert not row.ok
    assert row.error is not None
    assert row.error.startswith("product of two matrices: 65536 of 65536 elements differ")


def test_a_device_that_is_not_there_gives_rows_and_no_exception() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    rows = smoke.smoke_device(0, "cuda:0")
    assert [row.kind for row in rows] == ["compute", "copy"]
    assert all(not row.ok and row.error for row in rows)


def test_every_pair_of_gpus_is_tried_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    pairs = {
        (index, peer)
        for index in range(3)
        for kind, peer, _ in smoke.list_trials(torch.device("cuda", index))
        if kind == "peer-copy"
    }
    assert pairs == {(a, f"cuda:{b}") for a in range(3) for b in range(3) if a != b}


def test_a_peer_copy_that_brings_other_bytes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = exact_values.make_pattern
    monkeypatch.setattr(
        "ddpdoctor.launch.probes.smoke.make_pattern", lambda *args: LossyTensor.wrap(original(*args))
    )
    with pytest.raises(smoke.WrongContentsError, match=r"cuda:0 to cuda:1: \d+ of .* first at 4096"):
        smoke.check_peer_copy(torch.device("cuda:0"), torch.device("cuda:1"))


class LossyTensor(torch.Tensor):
    """Stays where it is whatever device it is sent to, and loses a page on the way to cuda:1."""

    @classmethod
    def wrap(cls, content: torch.Tensor) -> LossyTensor:
        return content.as_subclass(cls)

    def to(self, *args: object, **options: object) -> torch.Tensor:
        if str(args[0]) == "cuda:1":
            damaged = self.as_subclass(torch.Tensor).clone()
            damaged[4096:8192] += 1
            return damaged
        return self.as_subclass(torch.Tensor) if args[0] == "cpu" else self
