"""What ranks share is what they agree on, not what counts of ranks suggest."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from ddpdoctor.evidence import RankSet
from ddpdoctor.gather import machine
from ddpdoctor.launch.context import RankContext
from ddpdoctor.launch.probes import probe_initialisation
from ddpdoctor.launch.probes.ddp import probe_ddp
from ddpdoctor.launch.probes.sharing import find_common_directory, share_machine
from tests.launch.worlds import run_world


def find(ctx: RankContext) -> tuple[str | None, bool]:
    found = find_common_directory(ctx)
    return None if found is None else str(found), share_machine(ctx)


def hide_from_rank_1(ctx: RankContext) -> None:
    """As in a container with a /tmp of its own."""
    if ctx.rank == 1:
        mock.patch.object(os.path, "isfile", return_value=False).start()  # the rank's process ends with it


def forget_the_boot(ctx: RankContext) -> None:
    if ctx.rank == 0:
        mock.patch.object(machine, "boot_id", return_value=None).start()


def test_ranks_with_directories_of_their_own_use_that_of_rank_0(tmp_path: Path) -> None:
    world = run_world(find, 3, tmp_path, apart=True)
    folders = {report.result[0] for report in world.reports}
    assert len(folders) == 1
    assert Path(folders.pop()).parent == tmp_path
    assert list(tmp_path.glob("*/*")) == []


def test_nothing_is_shared_where_one_rank_cannot_see_it(tmp_path: Path) -> None:
    world = run_world(find, 3, tmp_path, patch=hide_from_rank_1)
    assert [report.result for report in world.reports] == [(None, True)] * 3


def test_nothing_is_shared_between_machines_or_where_they_are_unknown(tmp_path: Path) -> None:
    apart = run_world(find, 2, tmp_path, nodes=2)
    unknown = run_world(find, 2, tmp_path, patch=forget_the_boot)
    assert [report.result for report in (*apart.reports, *unknown.reports)] == [(None, False)] * 4


def test_a_checkpoint_and_file_initialization_need_no_directory_of_each_rank(tmp_path: Path) -> None:
    """What torchrun, srun and mpirun gave: FileNotFoundError, at high confidence, on a healthy machine."""
    checkpoint = run_world(probe_ddp, 2, tmp_path, apart=True)
    row = next(each for each in checkpoint.evidence.experiments if each.name == "checkpoint")
    assert (row.passed, row.facts["by"]) == (RankSet.span(2), "file")
    ways = run_world(probe_initialisation, 2, tmp_path, apart=True)
    assert ways.errors == {}
    assert {each.method for each in ways.evidence.initialisations if each.passed} == {"tcp", "file"}


def test_ranks_without_a_common_directory_pass_the_checkpoint_by_broadcast(tmp_path: Path) -> None:
    world = run_world(probe_ddp, 2, tmp_path, patch=hide_from_rank_1, apart=True)
    row = next(each for each in world.evidence.experiments if each.name == "checkpoint")
    assert (row.passed, row.facts["by"]) == (RankSet.span(2), "broadcast")
    ways = run_world(probe_initialisation, 2, tmp_path, patch=hide_from_rank_1, apart=True)
    assert next(each for each in ways.evidence.initialisations if each.method == "file").skipped
