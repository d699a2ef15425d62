"""Which hosts ranks are on, also those that never reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.testing import make_world
from ddpdoctor_checks.stage_evidence import hosts_of_ranks


@pytest.fixture
def half_silent() -> Evidence:
    """Two nodes with two ranks each, of which those of node 1 said nothing."""
    world = make_world(2, 2)
    return replace(world, ranks=tuple(rank for rank in world.ranks if rank.node == 0))


def test_hosts_come_in_the_order_of_ranks_and_once() -> None:
    assert hosts_of_ranks(make_world(2, 2), RankSet([3, 0, 1])) == ("node-0", "node-1")
    assert hosts_of_ranks(make_world(2, 2), RankSet()) == ()


def test_silent_ranks_are_where_the_launch_puts_them(half_silent: Evidence) -> None:
    assert hosts_of_ranks(half_silent, RankSet([1, 3])) == ("node-0", "node-1")


def test_silent_ranks_of_an_unknown_node_are_nowhere(half_silent: Evidence) -> None:
    alone = replace(half_silent, nodes=half_silent.nodes[:1])
    assert hosts_of_ranks(alone, RankSet([3])) == ()


def test_silent_ranks_are_not_guessed_where_nodes_have_different_numbers(half_silent: Evidence) -> None:
    uneven = replace(half_silent, launch=replace(half_silent.launch, world_size=5))
    assert hosts_of_ranks(uneven, RankSet([3])) == ()
