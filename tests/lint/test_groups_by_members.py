"""COL006 where the members of a group alone make it, and where each rank makes one of its own list."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint

HEAD = (
    "dist.init_process_group('gloo')\nrank = dist.get_rank()\nworld = dist.get_world_size()\nranks = [0, 1]\n"
)
BY_MEMBERS = (
    "if rank in ranks:\n    pair = dist.new_group(ranks)\n",
    "if dist.get_rank() in ranks:\n    pair = dist.new_group(ranks)\n",
    "for first in range(0, world, 2):\n    both = [first, first + 1]\n    if rank in both:\n        pair = dist.new_group(both)\n",
    "def make(members):\n    if rank not in members:\n        return None\n    return dist.new_group(members)\n\n\nmake(ranks)\n",
)
OWN_LISTS = (
    "solo = dist.new_group([rank])\n",
    "first = rank // 4 * 4\nnode = dist.new_group(list(range(first, first + 4)))\n",
    "node = dist.new_group([rank // 4 * 4 + each for each in range(4)])\n",
    "solo = dist.new_group(ranks=[dist.get_rank()], backend='gloo')\n",
)
RIGHT = (
    "pair = dist.new_group(ranks)\nif rank in ranks:\n    dist.barrier(group=pair)\n",
    "if rank in ranks:\n    pair = dist.new_group(ranks, use_local_synchronization=True)\n",
    "solo = dist.new_group([rank], use_local_synchronization=True)\n",
    "groups = [dist.new_group(list(range(each, each + 4))) for each in range(0, world, 4)]\nown = groups[rank // 4]\n",
    "for first in range(0, world, 2):\n    pair = dist.new_group([first, first + 1])\n    if rank in (first, first + 1):\n"
    "        own = pair\n",
)  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize("body", [*BY_MEMBERS, *OWN_LISTS])
def test_group_that_not_all_ranks_make_alike_is_a_warning(body: str) -> None:
    assert [(each.code, each.severity) for each in lint(HEAD + body)] == [("COL006", "warning")]


@pytest.mark.right
@pytest.mark.parametrize("body", RIGHT)
def test_group_that_all_ranks_make_is_none(body: str) -> None:
    assert lint(HEAD + body) == []
