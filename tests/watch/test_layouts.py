"""How a model is shared out: what a rank writes down of its mesh, and who is compared with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddpdoctor.evidence import RankSet
from tests.watch.test_hostile_training import table
from tests.watch.test_training_folds import fold, look

ROWS = [
    ["w", "parameter", -1, [4, 4], "float32", True, 0, None],
    ["norm", "parameter", -1, [4], "float32", True, 0, None],
]


def sharded(axes: list[list[Any]], pieces: list[list[Any]]) -> str:
    return table(
        ["w", "norm"], models={"-1": "Net"}, rows=ROWS, layout={"axes": axes, "pieces": pieces}, wrappers=[]
    )


def hybrid(rank: int, weight: str, norm: str) -> list[str]:
    """Return what a rank of two data-parallel by two tensor-parallel ones wrote: the norm is whole on every rank."""
    dp, tp = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
    axes = [["fully_shard", "replicate", dp], ["parallelize_module", "tp", tp]]
    each = [[weight, 1.0], [norm, 1.0]]
    return [
        sharded(axes, [[f"tp{rank % 2}/2", [0]]]),
        look(1, f"{weight}{norm}", whole=True, each=each, values=f"{weight}{norm}"),
    ]


def test_pieces_are_compared_among_those_that_hold_the_same(tmp_path: Path) -> None:
    found = fold(tmp_path, *(hybrid(rank, f"w{rank % 2}", "n") for rank in range(4)))
    (setup,) = found.optimizers
    assert setup.peers == (RankSet([0, 2]), RankSet([1, 3]))
    assert [len(each.values) for each in found.steps] == [1]
    assert {(axis.role, str(axis.groups[0])) for axis in found.layout.axes} == {
        ("data", "0,2"),
        ("tensor", "0-1"),
    }


def test_a_piece_that_differs_among_them_is_listed(tmp_path: Path) -> None:
    weights = ["w0", "w1", "w0", "other"]
    found = fold(tmp_path, *(hybrid(rank, weights[rank], "n") for rank in range(4)))
    (step,) = found.steps
    assert [(each.name, [str(share.ranks) for share in each.values]) for each in step.tensors] == [
        ("w", ["0,2", "1", "3"])
    ]


def test_a_whole_parameter_is_compared_over_the_pieces_of_others(tmp_path: Path) -> None:
    found = fold(tmp_path, *(hybrid(rank, f"w{rank % 2}", f"n{rank % 2}") for rank in range(4)))
    (step,) = found.steps
    assert [(each.name, [str(share.ranks) for share in each.values]) for each in step.tensors] == [
        ("norm", ["0,2", "1,3"])
    ]
