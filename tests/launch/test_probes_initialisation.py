from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ddpdoctor.evidence import InitResult, RankSet
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import probe_initialisation
from tests.launch.worlds import World, run_world


def by_method(world: World) -> dict[str, InitResult]:
    return {each.method: each for each in world.evidence.initialisations}


@pytest.mark.parametrize("world_size", [1, 3])
def test_tcp_and_file_form_groups_on_one_node(world_size: int, tmp_path: Path) -> None:
    world = run_world(probe_initialisation, world_size, tmp_path)
    assert world.errors == {}
    rows = by_method(world)
    assert set(rows) == {"tcp", "file"}
    assert all(row.passed == RankSet.span(world_size) and not row.failures for row in rows.values())


def test_file_is_skipped_on_several_nodes(tmp_path: Path) -> None:
    rows = by_method(run_world(probe_initialisation, 2, tmp_path, nodes=2))
    assert rows["tcp"].passed == RankSet.span(2)
    assert rows["file"].skipped


def pretend_torchrun(ctx: RankContext) -> None:
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"


def test_under_an_agent_rank_0_still_hosts_the_store(tmp_path: Path) -> None:
    world = run_world(probe_initialisation, 2, tmp_path, patch=pretend_torchrun)
    assert by_method(world)["tcp"].passed == RankSet.span(2)


def refuse_file(ctx: RankContext) -> None:
    original = dist.init_process_group

    def init(*args: Any, **options: Any) -> None:
        if options["init_method"].startswith("file://"):
            raise RuntimeError("no locks available")
        original(*args, **options)

    dist.init_process_group = init


def test_a_way_that_fails_is_recorded(tmp_path: Path) -> None:
    world = run_world(probe_initialisation, 2, tmp_path, patch=refuse_file)
    assert set(world.errors) == {0, 1}
    rows = by_method(world)
    assert rows["tcp"].passed == RankSet.span(2)
    assert [(m.ranks, m.text) for m in rows["file"].failures] == [
        (RankSet.span(2), "RuntimeError: no locks available")
    ]
