"""The one `if` by which a rank came past the call in which others wait, and ranks that skipped a backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.standstill import Call, LoaderStand, Stand
from ddpdoctor.evidence.training.fingerprints import Training
from ddpdoctor.evidence.training.syncs import Syncs, Unfollowed
from ddpdoctor.judge import Finding
from ddpdoctor_checks.job.calls.unfollowed import find_skipped_backward
from ddpdoctor_checks.job.hangs.progress import judge_look
from tests.checks.standing import ENGINE, TORCH, at, backward, collective, forward, look, proved, stand

RETURN = Frame("train.py", 9, "unless", "if not samples:")
MAIN = Frame("train.py", 40, "if", 'if __name__ == "__main__":')
LOOP = Frame("train.py", 30, "for", "for epoch in range(epochs):")
STOP = Frame("train.py", 35, "until", "if stopper.done:")


def inside(rank: int, *conditions: Frame, caller: int = 22) -> Stand:
    """A rank in an all_reduce of a function that main calls."""
    call = replace(collective("all_reduce", 1, 12, 2), frames=(at(12, "evaluate"), at(caller, "main")))
    return stand(rank, call, conditions=conditions)


def past(rank: int, *conditions: Frame) -> Stand:
    """A rank in a barrier of main."""
    call = replace(collective("barrier", 1, 23, 2), frames=(at(23, "main"),))
    return stand(rank, call, conditions=conditions)


def test_an_early_return_is_the_place_and_its_rank_is_at_fault() -> None:
    found = proved([inside(0, RETURN, MAIN), past(1, MAIN)])
    assert (found.ranks, found.victims) == (RankSet([1]), RankSet([0]))
    assert [(each.line, each.role) for each in found.where] == [
        (9, "culprit"),
        (23, "culprit"),
        (12, "victim"),
    ]
    assert "rank 1 skipped that call at the `if` in train.py:9" in found.message
    assert "train.py:9" in found.fix[0].text


@pytest.mark.parametrize(
    ("conditions", "caller"),
    [
        ((RETURN, replace(RETURN, line=11), MAIN), 22),
        ((RETURN, Frame("train.py", 8, "for", "for part in parts:"), MAIN), 22),
        ((MAIN,), 22),
        ((replace(RETURN, source="if not dist.is_initialized() or world_size == 1:"), MAIN), 22),
        ((RETURN, MAIN), 24),
    ],
    ids=[
        "two ways past it",
        "a loop without turns",
        "no way past it",
        "the same on all ranks",
        "still to come",
    ],
)
def test_where_another_way_may_have_led_past_the_call_none_is_named(
    conditions: tuple[Frame, ...], caller: int
) -> None:
    found = proved([inside(0, *conditions, caller=caller), past(1, MAIN)])
    assert (found.ranks, found.where[0].line) == (RankSet([0, 1]), 12)


def test_a_rank_that_issued_the_call_in_this_turn_has_not_skipped_it() -> None:
    site = (at(12, "evaluate"), at(22, "main"))
    first = [replace(collective("all_reduce", number, 12, 2), frames=site) for number in (1, 2)]
    last = replace(collective("barrier", 2, 23, 2), frames=(at(23, "main"),))
    found = proved(
        [stand(0, *first, conditions=(RETURN, MAIN)), stand(1, first[0], last, conditions=(MAIN,))]
    )
    assert all(each.line != RETURN.line for each in found.where)


BEST = Frame("train.py", 36, "if", "if loss < best:")
BATCHES = Frame("train.py", 11, "for", "for batch in batches:")


def saves(
    line: int = 34, *conditions: Frame, outer: tuple[Frame, ...] = (LOOP, MAIN), within: bool = False
) -> Finding:
    """A rank that saves below an `if` of a loop, and one that trains, after a collective that main called on a line.

    within: it does not call a function for it.
    """

    def make(number: int, op: str, own: int, function: str, of_main: int) -> Call:
        frames = (at(own, function), at(of_main, "main"))
        return replace(collective(op, number, own, 2), frames=frames)

    done = [make(1, "all_gather", 12, "train", 32), make(1, "reduce", 20, "validate", line)]
    done += [make(2, "all_gather", 12, "train", 32), make(2, "reduce", 20, "validate", line)]
    ordered = [replace(call, ordinal=number) for number, call in enumerate(done, 1)]
    saving, training = make(5, "barrier", 25, "save", 37), make(5, "all_gather", 12, "train", 32)
    if within:
        saving = replace(saving, frames=saving.frames[1:])
    return proved(
        [
            stand(0, *ordered, saving, conditions=(BEST, *conditions, *outer)),
            stand(1, *ordered, training, conditions=(BATCHES, *outer)),
        ]
    )


def test_an_if_that_a_rank_came_past_in_the_turn_before_is_the_place() -> None:
    found = saves()
    assert (found.code, found.ranks) == ("COL002", RankSet([0]))
    assert [(each.line, each.role) for each in found.where][:2] == [(36, "culprit"), (25, "culprit")]
    assert "rank 0 went into the `if` in train.py:36, the others past it" in found.message


def test_a_call_that_stands_in_such_an_if_itself_comes_first() -> None:
    found = saves(within=True)
    assert [(each.line, each.role) for each in found.where][:2] == [(37, "culprit"), (36, "condition")]
    assert "rank 0 went into the `if` in train.py:36, the others past it" in found.message


@pytest.mark.parametrize(
    "found",
    [
        saves(32),
        saves(40),
        saves(34, replace(BEST, line=35, source="if epoch > warmup:")),
        saves(34, outer=(MAIN,)),
    ],
    ids=["it has left the loop", "behind both", "two tests", "no loop around both"],
)
def test_an_if_that_may_not_be_what_parts_the_ranks_is_not_named(found: Finding) -> None:
    assert "the others past it" not in found.message


def left(*conditions: Frame) -> Finding:
    """Two ranks in a backward of a loop, of which a third waits behind the loop."""
    done = [forward(number, 32, 3) for number in range(1, 5)]
    held = [backward(rank, 5, 33, *done, world=3, conditions=conditions) for rank in (0, 2)]
    ended = stand(1, *done, collective("barrier", 1, 37, 3))
    return proved([held[0], ended, held[1]])


def test_a_break_out_of_a_loop_over_a_range_is_the_place() -> None:
    found = left(STOP, LOOP)
    assert [each.line for each in found.where][:2] == [35, 37]
    assert "left the loop (train.py:30) by the break at the `if` in train.py:35" in found.message


def test_a_loop_that_runs_as_often_on_all_ranks_is_not_the_one_that_was_left() -> None:
    found = left(Frame("train.py", 32, "for", "for i in range(4):"), STOP, LOOP)
    assert "left the loop (train.py:30)" in found.message


@pytest.mark.parametrize(
    "head", ["for x, y in loader:", "for i in range(len(loader)):", "while step < steps:"]
)
def test_a_loop_that_may_end_by_itself_names_no_break(head: str) -> None:
    found = left(STOP, replace(LOOP, source=head))
    assert found.where[0].line == 37
    assert "break" not in found.message


HANDLER = Frame("train.py", 34, "train", "except ValueError:")


def training(*rows: Unfollowed) -> Training:
    return Training(node=0, ranks=RankSet.span(3), syncs=Syncs(unfollowed=rows))


def row(*ranks: int, line: int = 32, handler: Frame | None = HANDLER) -> Unfollowed:
    return Unfollowed(1, RankSet(ranks), 1, (at(line),), handler)


def explain(*rows: Unfollowed) -> Finding:
    done = [forward(number, 32, 3) for number in range(1, 5)]
    held = [backward(rank, 5, 33, *done, world=3, conditions=(LOOP,)) for rank in (0, 2)]
    ended = stand(1, *done, collective("barrier", 1, 37, 3))
    stands = (look([held[0], ended, held[1]]),)
    found = judge_look(
        Evidence(launch=Launch(command="run"), standstills=stands, training=(training(*rows),))
    )
    assert found is not None
    return found


def test_the_except_behind_which_a_rank_goes_on_is_the_place_of_a_hang() -> None:
    found = explain(row(1))
    assert (found.ranks, found.victims, found.where[0].line) == (RankSet([1]), RankSet([0, 2]), 34)
    assert found.message.endswith(
        "Rank 1 ran a forward pass at train.py:32 without its backward pass (the `except` at train.py:34 continues "
        "after an exception)."
    )


def test_without_an_except_the_forward_pass_is_the_place() -> None:
    assert explain(row(1, handler=None)).where[0].line == 32


@pytest.mark.parametrize(
    "rows",
    [(), (row(0, 1, 2),), (row(1), row(0, line=50))],
    ids=["none", "all ranks", "several lines"],
)
def test_forward_passes_of_all_ranks_explain_nothing(rows: tuple[Unfollowed, ...]) -> None:
    evidence = Evidence(launch=Launch(command="run"), training=(training(*rows),))
    assert find_skipped_backward(evidence) is None
    assert "without its backward" not in explain(*rows).message


LESION = Frame("train.py", 110, "if", "if has_lesion:")
BATCHES = Frame("train.py", 100, "for", "for img, mask in loader:")
EPOCHS = Frame("train.py", 99, "for", "for epoch in range(epochs):")


SITE = (at(68, "update"), at(111, "main"))


def metric(number: int, forwards: int, *conditions: Frame) -> Stand:
    """A rank in the reduction of a metric, in a function that main calls below an `if`."""
    own = [
        replace(forward(each + 1, 105, 2, reduces=True), frames=(at(105, "main"),))
        for each in range(forwards)
    ]
    calls = [
        replace(collective("all_reduce", each + 1, 68, 2, group="1"), frames=SITE) for each in range(number)
    ]
    return stand(0, *calls[:-1], *own, calls[-1], conditions=conditions)


def trained(number: int, *conditions: Frame, metrics: int = 6) -> Stand:
    """A rank in the backward pass of its number-th forward, which has reduced so many metrics."""
    done = [
        replace(collective("all_reduce", each + 1, 68, 2, group="1"), frames=SITE) for each in range(metrics)
    ]
    own = [
        replace(forward(each + 1, 105, 2, reduces=True), frames=(at(105, "main"),)) for each in range(number)
    ]
    frames = (ENGINE, Frame(f"{TORCH}_tensor.py", 1, "backward"), at(108, "main"))
    return replace(stand(1, *done, *own, frames=frames, conditions=conditions), call=None)


def test_a_rank_a_turn_ahead_has_skipped_the_call_at_the_if_around_it() -> None:
    """Both are in one loop: the rank in the next backward has run the model once more."""
    found = proved([metric(7, 6, LESION, BATCHES, EPOCHS), trained(7, BATCHES, EPOCHS)])
    assert (found.ranks, found.where[0].line) == (RankSet([1]), LESION.line)
    assert "rank 1 skipped that call at the `if` in train.py:110" in found.message


@pytest.mark.parametrize("forwards", [6, 8], ids=["of the same turn", "two turns ahead"])
def test_a_rank_that_is_not_one_turn_ahead_may_have_come_another_way(forwards: int) -> None:
    found = proved([metric(7, 6, LESION, BATCHES, EPOCHS), trained(forwards, BATCHES, EPOCHS)])
    assert all(each.line != LESION.line for each in found.where)


def loading(found: Stand, number: int) -> Stand:
    return replace(found, loaders=(LoaderStand(20, number, frames=(at(100, "main"),)),))


def saving(number: int) -> Stand:
    call = replace(collective("barrier", 2, 63, 2, group="1"), frames=(at(63, "save"), at(120, "main")))
    own = [replace(forward(each, 105, 2, reduces=True), frames=(at(105, "main"),)) for each in range(1, 21)]
    return loading(stand(0, *own, call, conditions=(EPOCHS,)), number)


def test_a_rank_in_the_next_turn_of_the_outer_loop_came_past_the_call() -> None:
    """Saving failed on one rank, and the exception was caught with the barrier behind it."""
    found = proved([saving(1), loading(trained(21, BATCHES, EPOCHS, metrics=1), 2)])
    assert found.ranks == RankSet([1])
    assert "rank 1 came past that call, and is in the next turn of the loop at train.py:99" in found.message
    assert "exception" in found.fix[0].text


@pytest.mark.parametrize(
    "more", [(), (replace(BATCHES, line=97, source="for part in parts:"),)], ids=["same", "inner"]
)
def test_a_rank_whose_loader_was_not_begun_again_in_a_later_turn_is_not_ahead(
    more: tuple[Frame, ...],
) -> None:
    """Its batches may be more; or a loop in between, entered who knows how often, begins the loader again."""
    found = proved([saving(1), loading(trained(21, BATCHES, *more, EPOCHS, metrics=1), 1 + len(more))])
    assert "came past" not in found.message
