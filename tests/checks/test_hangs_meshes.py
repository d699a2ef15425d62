"""Recorder dumps of a mesh: waits are followed between groups to the rank that waits for no other."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.collectives import STARTED
from ddpdoctor_checks.job.calls.chains import name_dimension
from ddpdoctor_checks.job.calls.sequences import GroupCalls
from tests.checks.recorded import DONE, Made, first


def make_mesh() -> Made:
    """Eight ranks, TP of neighbours and DP of stride 2: rank 5 stays away from its DP call."""
    made = Made(8).together(DONE)
    for start in range(0, 8, 2):
        members = RankSet([start, start + 1])
        made.call(list(members), "all_gather", 20, 1, group=f"tp{start}", members=members)
    for odd in (0, 1):
        members = RankSet(range(odd, 8, 2))
        made.call(
            list(members.minus(RankSet([5]))), "all_reduce", 30, 1, STARTED, group=f"dp{odd}", members=members
        )
    return made


def test_rank_that_waits_for_no_other_is_blamed() -> None:
    made = make_mesh()
    # Rank 4 has come to the next call of its TP group, in which it waits for rank 5; so it is late in DP itself.
    members = RankSet([4, 5])
    made.rows[4] = [row for row in made.rows[4] if row[2] != STARTED]
    made.call([4], "all_gather", 21, 2, STARTED, group="tp4", members=members)
    found = first(made)
    assert (found.code, found.ranks) == ("COL002", RankSet([5])), found.message
    assert "of group dp1" in found.message
    assert (
        "rank 5 had not issued it: issued no collective on the group at all (data parallel)" in found.message
    )


def test_ranks_that_wait_in_other_groups_are_no_culprits() -> None:
    made = Made(6).together(DONE)
    wide, pair = RankSet(range(6)), RankSet([4, 5])
    # 0-3 wait in a call of all; 4 waits for 5 in their own group; 5 waits nowhere.
    made.call(range(4), "all_reduce", 30, 1, STARTED, group="dp", members=wide)
    made.call([4], "all_gather", 20, 1, STARTED, group="ep", members=pair)
    found = first(made)
    assert (found.code, found.ranks) == ("COL002", RankSet([5])), found.message


@pytest.mark.parametrize(
    ("name", "description", "members", "words"),
    [
        ("7", "TENSOR_MODEL_PARALLEL_GROUP", [0, 1], "tensor parallel"),
        ("mesh_dp", "", [0, 4], "data parallel"),
        ("12", "EXPERT_MODEL_PARALLEL_GROUP", [0, 1, 2], "expert parallel"),
        ("12", "", [0, 4, 8], "the dimension of stride 4"),
        ("12", "", [0, 4, 5], ""),
    ],
)
def test_dimension_is_that_of_the_name_or_of_the_stride(
    name: str, description: str, members: list[int], words: str
) -> None:
    assert name_dimension(GroupCalls(name, description, RankSet(members), {})) == words
