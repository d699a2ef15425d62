"""The page's section of replicas and data: who agrees with whom, and nothing where nothing was seen."""

from __future__ import annotations

import dataclasses

import pytest

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.fingerprints import StepLook, Training
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.trained import view_trained
from ddpdoctor.testing import make_world
from tests.checks.training import Made, tensor


def test_steps_batches_and_orders_are_told_over_the_ranks() -> None:
    made = (
        Made(4)
        .look(1, "", "0-2|3")
        .look(2, "0-2|3", "0-2|3", tensor("fc.weight", 4, "0-2|3", "0-2|3"))
        .loader()
    )
    made.batch(1, "0-1|2|3").epoch(1, {0: "a", 1: "b"})
    view = view_trained(made.evidence(), Caps())
    assert view is not None
    first, second = view.steps
    assert (first.step, first.parameters.text, first.parameters.parted) == ("1", "equal on ranks 0-3", False)
    assert (second.parameters.text, second.gradients.text, second.first) == (
        "0-2 | 3",
        "0-2 | 3",
        "fc.weight",
    )
    assert second.parameters.parted
    assert (view.when, view.tensors[0].parts) == ("before step 2", (("ranks 0-2", "1"), ("rank 3", "2")))
    assert [(loader, which, cell.text) for loader, which, cell in view.batches] == [
        ("train.py:25", "epoch 1, batch 1", "the same on 0-1")
    ]
    assert [row[1:3] for row in view.epochs] == [("1", "rank 0"), ("1", "rank 1")]


def test_nothing_is_shown_where_nothing_was_seen() -> None:
    assert view_trained(make_world(), Caps()) is None
    alone = dataclasses.replace(Made(1).look(1).training(), ranks=RankSet([0]))
    assert view_trained(dataclasses.replace(make_world(), training=(alone,)), Caps()) is None


def test_nodes_are_one_row_for_each_step() -> None:
    def node(number: int, digest: str) -> Training:
        ranks = RankSet([number])
        look = StepLook(optimizer=1, step=1, values=(Share(digest, ranks),), gradients=(Share("g", ranks),))
        return Training(node=number, ranks=ranks, steps=(look,))

    view = view_trained(dataclasses.replace(make_world(), training=(node(0, "a"), node(1, "b"))), Caps())
    assert view is not None
    (row,) = view.steps
    assert (row.parameters.text, row.gradients.text) == ("0 | 1", "equal on ranks 0-1")


@pytest.mark.unmeasured
def test_many_ranks_and_looks_are_folded_and_what_is_left_out_is_said() -> None:
    made = Made(16_384)
    for step in range(1, 60):
        made.look(step, "|".join(map(str, range(0, 16_384, 2))) if step > 2 else "")
    caps = Caps()
    view = view_trained(made.evidence(), caps)
    assert view is not None
    assert len(view.steps[-1].parameters.text) < 80
    assert "snapshots of replicas: 40 of 59 shown" in caps.notes
