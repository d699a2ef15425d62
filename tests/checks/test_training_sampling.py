"""Samplers that do not fit each other, splits that differ, evaluation that counts twice; and what is no fault."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import Piece
from ddpdoctor.evidence.training.sampling import Sampling
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor_checks.training.data.samplers import estimate_overlap
from tests.checks.jobs import Job
from tests.checks.training import CALL, SEED, Made, judge, only

TRAIN = Frame("train.py", 25, "train", "for batch in loader:")
EVALUATE = Frame("train.py", 60, "evaluate", "for batch in validation:")
SAMPLER = "torch.utils.data.distributed.DistributedSampler"


def told(
    rank: int, *, line: Frame = TRAIN, trained: bool = True, shard: int | None = None, **more: Any
) -> Sampling:
    """Return what a healthy rank of two has, but for what is given."""
    base = Sampling(
        loader=f"train.py:{line.line}",
        number=1,
        ranks=RankSet([rank]),
        frames=(line,),
        length=10,
        sampler=SAMPLER,
        shuffle=True,
        seed=0,
        epoch=0,
        replicas=2,
        total=100,
        shards={str(rank): rank if shard is None else shard},
        trained=trained,
        samples=50,
    )
    return dataclasses.replace(base, **more)


def evidence(*samplings: Sampling, wrapped: bool = True, group: str = "") -> Evidence:
    made = Made(2, wrapped=wrapped, group=group).look(1).training()
    return Evidence(training=(dataclasses.replace(made, samplings=samplings),))


def part(rank: int, numbers: Sequence[int], *, trained: bool = True, origin: str | None = "a") -> Sampling:
    line = TRAIN if trained else EVALUATE
    return told(
        rank, line=line, trained=trained, dataset="__main__.Pictures", origin=origin, split_size=len(numbers),
        split=tuple(sorted(numbers)[:128]),
    )  # fmt: skip


def share(rank: int, numbers: Sequence[int], *, reach: int | None = 400, **more: Any) -> Sampling:
    """Return a part that a rank takes by hand, and reads once."""
    told: dict[str, Any] = {"sampler": None, "replicas": None, "shards": {}, "split_reach": reach, **more}
    return dataclasses.replace(part(rank, numbers), **told)


def test_samplers_that_fit_are_no_finding() -> None:
    assert judge(evidence(told(0), told(1))) == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (told(1, seed=1), "a different seed"),
        (told(1, epoch=3), "set_epoch is not called on all"),
        (told(1, total=102), "differ in length"),
        (told(1, replicas=4), "different group sizes"),
        (told(1, shard=0), "rank 0 on ranks 0-1"),
    ],
)
def test_what_differs_is_named_with_the_line(other: Sampling, says: str) -> None:
    found = only(evidence(told(0), other))
    assert (found.code, found.severity, found.ranks) == ("DAT005", "error", RankSet([0, 1]))
    assert (found.where[0].line, found.where[0].role) == (TRAIN.line, "culprit")
    assert says in found.message


def test_parts_that_nobody_reads() -> None:
    job = dataclasses.replace(
        Job(world=2, exit_code=0).evidence(),
        training=evidence(told(0, replicas=4), told(1, replicas=4)).training,
    )
    assert "the other shards are never read" in only(job).message


@pytest.mark.parametrize(
    "pair",
    [
        (told(0, shuffle=False), told(1, shuffle=False, seed=1)),  # the seed is not used
        (told(0, replicas=1, shard=0), told(1, replicas=1, shard=0, seed=1)),  # draws from the whole
        (told(0, shard=0), told(1, shard=0, seed=1)),  # the same part in another order
        (told(0, replicas=None), told(1, replicas=None, seed=5)),
        (told(0), told(1, number=2, epoch=1)),
        (told(0), told(1, seed=None)),  # not known
    ],
)
def test_what_may_be_meant_is_no_finding(pair: tuple[Sampling, Sampling]) -> None:
    assert judge(evidence(*pair)) == []


def test_a_class_of_the_users_own_is_a_warning() -> None:
    found = only(evidence(told(0, sampler="__main__.Mine"), told(1, sampler="__main__.Mine", seed=1)))
    assert found.severity == "warning"


def test_validation_that_another_rank_trains_on() -> None:
    rows = (
        part(0, range(0, 80)), part(0, range(80, 100), trained=False),
        part(1, range(20, 100)), part(1, range(0, 20), trained=False),
    )  # fmt: skip
    found = only(evidence(*rows))
    assert (found.code, found.severity, found.ranks) == ("DAT004", "error", RankSet([0, 1]))
    assert "100%" in found.message
    assert [(place.role, place.line) for place in found.where] == [("culprit", 60), ("caller", 25)]


@pytest.mark.parametrize(
    "rows",
    [
        # one split for all
        (part(0, range(80)), part(0, range(80, 100), trained=False), part(1, range(80)),
         part(1, range(80, 100), trained=False)),
        # parts of the training set for each rank
        (part(0, range(0, 80, 2)), part(0, range(80, 100), trained=False), part(1, range(1, 80, 2)),
         part(1, range(80, 100), trained=False)),
        # files of their own, split each in its own way
        (part(0, range(80), origin="a"), part(0, range(80, 100), trained=False, origin="a"),
         part(1, range(20, 100), origin="b"), part(1, range(20), trained=False, origin="b")),
        # a part of the training set is evaluated, on purpose
        (part(0, range(80)), part(0, range(10), trained=False), part(1, range(80)), part(1, range(20), trained=False)),
    ],
)  # fmt: skip
def test_splits_that_are_right(rows: tuple[Sampling, ...]) -> None:
    assert judge(evidence(*rows)) == []


def test_models_of_their_own_may_have_splits_of_their_own() -> None:
    rows = (part(0, range(80)), part(1, range(80, 100), trained=False))
    assert judge(evidence(*rows, wrapped=False)) == []


def test_the_overlap_of_large_sets_is_estimated() -> None:
    scramble = [(number * 7919) % 100_003 for number in range(100_003)]
    half = part(0, scramble[:50_000])
    third = part(1, scramble[25_000:75_000])
    assert 0.3 < estimate_overlap(half, third) < 0.7
    assert estimate_overlap(half, part(1, scramble[50_000:])) == 0.0


def test_the_overlap_of_sets_that_are_known_as_a_whole_is_exact() -> None:
    assert estimate_overlap(part(0, range(10, 30)), part(1, range(20))) == 0.5


def test_groups_of_a_wrapper_may_have_splits_of_their_own() -> None:
    made = Made(4).look(1)
    made.groups = ["0-1", "2-3"]
    rows = [
        row
        for rank in range(4)
        for row in (
            part(rank, range(80) if rank < 2 else range(20, 100)),
            part(rank, range(80, 100) if rank < 2 else range(20), trained=False),
        )
    ]
    assert judge(Evidence(training=(dataclasses.replace(made.training(), samplings=tuple(rows)),))) == []


def test_evaluation_that_counts_samples_twice() -> None:
    rows = (
        told(0, line=EVALUATE, trained=False, shuffle=False, samples=5, padded=0),
        told(1, line=EVALUATE, trained=False, shuffle=False, samples=5, padded=1),
    )
    found = only(evidence(*rows))
    assert (found.code, found.severity, found.where[0].line) == ("DAT007", "warning", 60)
    assert "1 sample of 9 twice" in found.message


def test_little_padding_is_an_advice_and_padding_in_training_is_nothing() -> None:
    few = told(1, line=EVALUATE, trained=False, shuffle=False, samples=50, padded=1)
    assert only(evidence(few)).severity == "info"
    assert judge(evidence(dataclasses.replace(few, trained=True))) == []


def test_numbers_of_batches_that_differ_are_an_advice_where_nobody_waited() -> None:
    found = only(evidence(told(0, replicas=None, length=10), told(1, replicas=None, length=12)))
    assert (found.code, found.severity, found.role) == ("DAT003", "info", "advice")
    assert "10 batches on rank 0 and 12 batches on rank 1" in found.message


@pytest.mark.parametrize(
    ("more", "wrapped"),
    [({"joining": True}, True), ({"trained": False}, True), ({}, False), ({"length": None}, True)],
)
def test_numbers_of_batches_may_differ(more: dict[str, Any], wrapped: bool) -> None:
    pair = [dataclasses.replace(told(rank, replicas=None, length=10 + rank), **more) for rank in (0, 1)]
    assert judge(evidence(*pair, wrapped=wrapped)) == []


def draw(made: Made, draws: Sequence[str], batches: str = "0|1") -> Made:
    """Add a batch for each text, e.g. ``"0-1"`` where both ranks draw the same next."""
    for index, text in enumerate(draws, start=1):
        made.batch(index, batches)
        last = made.batches[-1]
        shares = tuple(
            Share(f"{text}{index}{n}", RankSet.parse(part)) for n, part in enumerate(text.split("|"))
        )
        made.batches[-1] = dataclasses.replace(last, draws=shares)
    return made


def test_random_numbers_that_are_the_same_on_ranks_are_an_advice() -> None:
    found = only(draw(Made(2).look(1), ["0-1"] * 3))
    assert (found.code, found.severity, found.ranks) == ("DAT006", "info", RankSet([0, 1]))


def test_the_line_that_seeded_ranks_alike_is_named() -> None:
    made = (
        draw(Made(2).look(1), ["0-1"] * 3).seed("0|1", line=3).seed("0-1").seed("0|1", line=40, trained=True)
    )
    found = only(made)
    assert [(each.line, each.role) for each in found.where] == [
        (SEED.line, "culprit"),
        (CALL.line, "noticed"),
    ]
    made = give(draw(Made(2).look(1), ["0-1"] * 3), *[("0|1", "0-1")] * 3).seed("0-1")
    made.batches[:] = [
        dataclasses.replace(given, draws=drawn.draws)
        for drawn, given in zip(made.batches[:3], made.batches[3:], strict=True)
    ]
    found = only(made)
    assert (found.severity, found.where[0].line) == ("warning", SEED.line)


@pytest.mark.parametrize("seeds", [("0-1", "0|1"), ("0",), ("0-1", "0")])
def test_ranks_that_were_not_seeded_alike_last(seeds: tuple[str, ...]) -> None:
    made = draw(Made(2).look(1), ["0-1"] * 3)
    for line, values in enumerate(seeds, start=1):
        made.seed(values, line=line)
    assert only(made).where[0].line == CALL.line


def test_random_numbers_that_differ_or_that_nobody_draws_are_none() -> None:
    assert judge(draw(Made(2).look(1), ["0|1"] * 3)) == []
    assert judge(draw(Made(2).look(1), ["0-1", "0-1"])) == []
    assert judge(draw(Made(2, wrapped=False).look(1), ["0-1"] * 3)) == []
    still = draw(Made(2).look(1), ["0-1"] * 3)
    still.batches[:] = [dataclasses.replace(each, draws=still.batches[0].draws) for each in still.batches]
    assert judge(still) == []


def give(made: Made, *batches: Sequence[str]) -> Made:
    """Add batches, each with who was given the same as each of its tensors, e.g. ``("0|1", "0-1")``."""
    for index, parts in enumerate(batches, start=1):
        made.batch(index, "0|1")
        shares = tuple(
            tuple(
                Share(f"{index}{place}{n}", RankSet.parse(ranks))
                for n, ranks in enumerate(filter(None, text.split("|")))
            )
            for place, text in enumerate(parts)
        )
        made.batches[-1] = dataclasses.replace(made.batches[-1], parts=shares)
    return made


def test_a_tensor_that_is_the_same_on_ranks_beside_one_that_differs_is_a_warning() -> None:
    found = only(give(Made(2).look(1), *[("0|1", "0-1")] * 3))
    assert (found.code, found.severity, found.confidence) == ("DAT006", "warning", "medium")
    assert (found.ranks, found.details["tensor"]) == (RankSet([0, 1]), 2)
    assert "Tensor 2 of what the model is given is the same on ranks 0-1" in found.message


def test_a_generator_that_a_checkpoint_restores_is_seen_in_a_later_epoch() -> None:
    made = give(Made(2).look(1), *[("0|1", "0|1")] * 3, *[("0|1", "0-1")] * 3)
    made.batches[3:] = [dataclasses.replace(each, epoch=2, index=each.index - 3) for each in made.batches[3:]]
    assert only(made).severity == "warning"


@pytest.mark.parametrize(
    "batches",
    [
        [("0|1", "0-1")] * 2,  # too few
        [("0|1", "0|1")] * 3,
        [("0|1", "0-1"), ("0|1", "0-1"), ("0|1", "0|1")],
        [("0-1", "0-1")] * 3,  # the same data, which is another mistake
        [("0|1", "0")] * 3,  # not known of one
        [("0|1", "")] * 3,  # the same for all samples, so not compared
        [("0|1",), ("0|1", "0-1"), ("0|1", "0-1")],
    ],
)
def test_tensors_that_tell_of_no_draws(batches: list[Sequence[str]]) -> None:
    assert judge(give(Made(2).look(1), *batches)) == []


def test_a_tensor_that_stays_the_same_from_batch_to_batch_is_no_draw() -> None:
    made = give(Made(2).look(1), *[("0|1", "0-1")] * 3)
    still = made.batches[0].parts[1]
    made.batches[:] = [dataclasses.replace(each, parts=(each.parts[0], still)) for each in made.batches]
    assert judge(made) == []


def shared_out(*batches: Sequence[tuple[int, str]], length: int = 8, size: int = 17) -> Made:
    """Return a job whose ranks give their model a piece: for each batch by rank where it begins, and of what."""
    made = Made(len(batches[0]), wrapped=False).look(1)
    for index, rows in enumerate(batches, start=1):
        made.batch(index, "|".join(map(str, range(made.world))))
        pieces = tuple(
            Piece(rank, 0, begin, length, size, digest) for rank, (begin, digest) in enumerate(rows) if digest
        )
        made.batches[-1] = dataclasses.replace(made.batches[-1], pieces=pieces)
    return made


def test_pieces_of_different_sequences_that_together_make_one() -> None:
    found = only(shared_out([(0, "a"), (8, "b")], [(0, "c"), (8, "d")]))
    assert (found.code, found.severity, found.ranks) == ("DAT009", "warning", RankSet([0, 1]))
    assert (found.where[0].line, found.details) == (CALL.line, {"length": 8, "size": 17})


@pytest.mark.parametrize(
    "made",
    [
        shared_out([(0, "a"), (8, "a")], [(0, "b"), (8, "b")]),
        shared_out([(0, "a"), (8, "b")]),
        shared_out([(0, "a"), (8, "b")], [(0, "c"), (8, "c")]),
        shared_out([(0, "a"), (8, "b")], [(3, "c"), (8, "d")]),
        shared_out([(0, "a"), (0, "b")], [(0, "c"), (0, "d")]),
        shared_out([(0, "a"), (8, "b")], [(0, "c"), (8, "d")], size=24),
        shared_out([(0, "a"), (8, "")], [(0, "c"), (8, "")]),
    ],
    ids=["one sequence", "once", "not always", "windows", "the same piece", "not all of it", "not known"],
)
def test_pieces_that_are_no_fault(made: Made) -> None:
    assert "DAT009" not in {each.code for each in judge(made)}


def whole(rank: int, **more: Any) -> Sampling:
    plain: dict[str, Any] = {"replicas": None, "total": None, "seed": None, "epoch": None, "shards": {}}
    kept = {**plain, "dataset": "__main__.Pictures", "origin": "a", "whole": 100, "samples": 100, **more}
    return told(rank, **kept)


def rows_of(*samplings: Sampling, wrapped: bool = True) -> list[str]:
    made = Made(2, wrapped=wrapped).look(1).batch(1, "0|1").training()
    found = judge(Evidence(training=(dataclasses.replace(made, samplings=samplings),)))
    return [each.code for each in found]


def test_ranks_that_each_go_through_the_whole_data_set_are_named() -> None:
    made = Made(2).look(1).batch(1, "0|1").training()
    (found,) = judge(Evidence(training=(dataclasses.replace(made, samplings=(whole(0), whole(1))),)))
    assert (found.code, found.severity, found.confidence) == ("DAT001", "warning", "medium")
    assert "all 100 samples of the same Pictures in one epoch of the loader at train.py:25" in found.message


@pytest.mark.parametrize(
    "more",
    [
        {"origin": "b"},  # files of its own
        {"samples": 40},  # left in the middle
        {"whole": None},  # drawn with replacement, or not by torch's sampler
        {"trained": False},
    ],
)
def test_what_is_not_known_to_be_the_whole_of_one_data_set_is_no_finding(more: dict[str, Any]) -> None:
    assert rows_of(whole(0), whole(1, **more)) == []
    assert rows_of(whole(0), whole(1), wrapped=False) == []
    assert rows_of(whole(0, length=1), whole(1, length=1)) == []  # all in one batch


def test_parts_taken_by_hand_of_orders_drawn_apart_overlap() -> None:
    first, second = (random.Random(seed).sample(range(400), 200) for seed in (0, 1))
    found = only(evidence(share(0, first), share(1, second)))
    assert (found.code, found.severity, found.ranks) == ("DAT005", "warning", RankSet([0, 1]))
    assert (found.where[0].line, found.where[0].role) == (TRAIN.line, "culprit")
    assert 0.35 < found.details["share"] < 0.65
    assert "400 indices together" in found.evidence[0].text


def filled_up(size: int, world: int) -> tuple[Sampling, ...]:
    """Return parts of one order in blocks, filled up from its head."""
    order = random.Random(3).sample(range(size), size)
    order += order[: -size % world]
    each = len(order) // world
    return tuple(share(rank, order[rank * each : (rank + 1) * each], reach=size) for rank in range(world))


def many(*rows: Sampling) -> Evidence:
    """Return the evidence of a world of as many ranks as there are parts."""
    made = Made(max(2, len({rank for row in rows for rank in row.ranks}))).look(1).training()
    return Evidence(training=(dataclasses.replace(made, samplings=rows),))


def test_parts_of_many_ranks_overlap() -> None:
    rows = [share(rank, random.Random(rank).sample(range(6400), 400), reach=6400) for rank in range(16)]
    found = only(many(*rows))
    assert (found.code, found.ranks) == ("DAT005", RankSet(range(16)))
    assert 0.5 < found.details["share"] < 0.75


@pytest.mark.parametrize(
    "rows",
    [
        (share(0, range(0, 400, 2)), share(1, range(1, 400, 2))),  # they share it out
        (share(0, range(200)), share(1, range(190, 400))),  # windows that touch
        (share(0, range(300)), share(1, range(100, 400))),  # more than the data set has
        (share(0, range(60)), share(1, range(30, 90), reach=90)),
        (share(0, range(200)), share(1, range(100, 300), reach=None)),  # something takes a part of that
        (share(0, range(200)), share(1, range(100, 300), replicas=2)),
        (share(0, range(200), trained=False), share(1, range(100, 300), trained=False)),  # evaluation
        (share(0, range(200), origin="a"), share(1, range(100, 300), origin="b")),  # files of their own
        (share(0, range(200), origin=None), share(1, range(100, 300), origin=None)),
        (share(0, range(15)), share(1, range(30, 15, -1), reach=30)),
        (share(0, range(10), reach=20), share(1, range(5, 15), reach=20)),  # few
        (share(0, range(200)),),
        (share(0, range(0, 400, 2)), share(1, range(0, 400, 2))),  # the same part
        (
            share(0, random.Random(0).sample(range(400), 200)),
            share(1, random.Random(1).sample(range(400), 200)),
            part(0, range(380, 400), trained=False),
        ),  # a split for evaluation, which is judged as such
        filled_up(45, 4),
        filled_up(265, 8),
        filled_up(3073, 32),
    ],
)
def test_parts_that_share_the_data_out_or_are_meant_are_no_finding(rows: tuple[Sampling, ...]) -> None:
    assert judge(many(*rows)) == []


def test_parts_of_ranks_that_nothing_keeps_equal_are_no_finding() -> None:
    first, second = (random.Random(seed).sample(range(400), 200) for seed in (0, 1))
    assert judge(evidence(share(0, first), share(1, second), wrapped=False)) == []
