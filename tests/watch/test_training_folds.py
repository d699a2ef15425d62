"""Which looks of ranks are at the same step of the same optimizer: under Join, and beside an optimizer of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.slimming import Slimmer
from ddpdoctor.watch.readers.training import TrainingReader
from tests.watch.test_hostile_training import step, table


def fold(folder: Path, *ranks: list[str]) -> Training:
    reader, slim = TrainingReader(Shortener(folder)), Slimmer().open()
    for rank, lines in enumerate(ranks):
        path = folder / f"{rank}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        events = [slim.take(json.loads(line)) for line in lines]
        reader.add(rank, path, events, len(ranks))
    found = reader.fold(0)
    assert found is not None
    assert not reader.damaged
    return found


def look(number: int, digest: str, **more: Any) -> str:
    return step(number, [[digest, 1.0]], rated=0.1 * number, rates=[0.1], **more)


def test_steps_that_a_rank_has_shadowed_count(tmp_path: Path) -> None:
    """Rank 1 has three batches and rank 0 five: what it holds before its fourth step rank 0 holds before its sixth."""
    first = [table(["w"]), look(1, "a"), look(4, "b"), look(6, "c"), look(11, "e", final=True)]
    second = [table(["w"]), look(1, "a"), look(4, "c", shadowed=2), look(7, "e", final=True, shadowed=4)]
    found = fold(tmp_path, first, second)
    agree = {each.step: [str(share.ranks) for share in each.values] for each in found.steps}
    assert agree == {1: ["0-1"], 4: ["0"], 6: ["0-1"], 11: ["0-1"]}
    assert {each.step: each.joined for each in found.steps} == {1: False, 4: False, 6: True, 11: True}
    assert [(share.digest, share.ranks) for share in found.optimizers[0].steps] == [("10", RankSet([0, 1]))]
    assert all(len(each.rated) < 2 for each in found.steps)


def test_what_differs_under_join_is_read_at_the_step_of_each_rank(tmp_path: Path) -> None:
    first = [table(["w"]), look(6, "c")]
    second = [table(["w"]), look(4, "d", shadowed=2)]
    (found,) = fold(tmp_path, first, second).steps
    (tensor,) = found.tensors
    assert [str(share.ranks) for share in tensor.values] == ["0", "1"]


def test_an_optimizer_of_one_rank_shifts_no_other(tmp_path: Path) -> None:
    """Rank 0 trains a baseline first; the wrapped model is its second optimizer, and the others' first."""
    own = table(["w"], models={"-1": "Net"}, rows=[["w", "parameter", -1, [2, 2], "float32", True, 0, None]])
    rank0 = [
        own,
        look(1, "x"),
        table(["w"], optimizer=2),
        look(1, "a", optimizer=2),
        look(2, "b", optimizer=2),
    ]
    rank1 = [table(["w"]), look(1, "a"), look(2, "c")]
    found = fold(tmp_path, rank0, rank1)
    setups = {each.number: (str(each.ranks), list(each.models)) for each in found.optimizers}
    assert setups == {1: ("0-1", ["1"]), 2: ("0", ["-1"])}
    agree = {(each.optimizer, each.step): [str(s.ranks) for s in each.values] for each in found.steps}
    assert agree == {(1, 1): ["0-1"], (1, 2): ["0", "1"], (2, 1): ["0"]}
    assert [each.name for each in found.steps[1].tensors] == ["w"]


def test_ranks_that_step_other_wrappers_keep_their_numbers(tmp_path: Path) -> None:
    own = table(["w"], models={"-1": "Net"})
    found = fold(tmp_path, [own, look(1, "a")], [table(["w"]), look(1, "b")])
    assert [(each.number, str(each.ranks)) for each in found.optimizers] == [(1, "0-1")]
    assert [len(each.values) for each in found.steps] == [2]


def bare(line: int, optimizer: int = 1, name: str = "w", model: int = -1, **more: Any) -> str:
    """Return the list of tensors of an optimizer whose model nothing wraps, first stepped at a line."""
    rows = [[name, "parameter", model, [2, 2], "float32", True, 0, None]]
    more = {"models": {str(model): "Net"}, "frames": [["train.py", line, "main"]], "rows": rows, **more}
    return table([name], optimizer=optimizer, **more)


def test_a_bare_model_that_one_rank_trained_before_shifts_no_other(tmp_path: Path) -> None:
    """Rank 0 warms a part of the model up by an optimizer of its own, and names the rest by that part."""
    rank0 = [
        bare(38),
        look(1, "x"),
        bare(83, optimizer=2, name="0.w", model=-2),
        look(1, "a", optimizer=2),
    ]
    found = fold(tmp_path, rank0, [bare(83), look(1, "b")], [bare(83), look(1, "b")])
    setups = {each.number: (str(each.ranks), each.frames[0].line, each.uniform) for each in found.optimizers}
    assert setups == {1: ("0-2", 83, True), 2: ("0", 38, True)}
    agree = {(each.optimizer, each.step): [str(s.ranks) for s in each.values] for each in found.steps}
    assert agree == {(1, 1): ["1-2", "0"], (2, 1): ["0"]}
    assert [(each.name, each.model) for each in found.steps[0].tensors] == [("w", -1)]


def test_bare_models_that_each_rank_steps_elsewhere_may_be_the_same(tmp_path: Path) -> None:
    found = fold(tmp_path, [bare(38), look(1, "a")], [bare(83), look(1, "b")])
    assert [(each.number, str(each.ranks)) for each in found.optimizers] == [(1, "0-1")]
    both = [bare(10), look(1, "a"), bare(20, optimizer=2), look(1, "a", optimizer=2)]
    other = [bare(10), look(1, "a"), bare(30, optimizer=2), look(1, "b", optimizer=2)]
    found = fold(tmp_path, both, other)
    assert {each.number: str(each.ranks) for each in found.optimizers} == {1: "0-1", 2: "0-1"}


def test_tensors_of_other_shapes_keep_their_names(tmp_path: Path) -> None:
    rows = [["0.w", "parameter", -2, [3], "float32", True, 0, None]]
    rank0 = [bare(38), look(1, "x"), bare(83, optimizer=2, model=-2, rows=rows), look(1, "a", optimizer=2)]
    found = fold(tmp_path, rank0, [bare(83), look(1, "b")])
    assert not found.optimizers[0].uniform


def unseen(line: int, digest: str, optimizer: int = 1) -> list[str]:
    """Return what is written of an optimizer whose model had not been seen to run before its first step."""
    name = "parameter 0 of the optimizer"
    return [
        bare(line, optimizer, name, 0, models={}),
        look(1, "x", optimizer=optimizer),
        bare(line, optimizer, table=2),
        look(2, digest, optimizer=optimizer, table=2),
    ]


def test_a_model_that_was_seen_after_the_first_step_keeps_its_name(tmp_path: Path) -> None:
    ranks = ([bare(10), look(1, "a"), *unseen(20, digest, 2)] for digest in "bc")
    found = fold(tmp_path, *ranks)
    assert [each.models for each in found.optimizers] == [{"-1": "Net"}, {"-1": "Net"}]
    (late,) = (each for each in found.steps if (each.optimizer, each.step) == (2, 2))
    assert [(each.name, each.model) for each in late.tensors] == [("w", -1)]


def test_names_are_those_of_a_model_that_was_seen(tmp_path: Path) -> None:
    warmed = [bare(38), look(1, "x"), *unseen(83, "a", 2)]
    found = fold(tmp_path, warmed, unseen(83, "b"))
    assert found.optimizers[0].models == {"-1": "Net"}
