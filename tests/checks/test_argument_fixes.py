"""What is said to do about arguments of a collective that differ."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence import Frame
from ddpdoctor.evidence.collectives import RecordedCall
from ddpdoctor_checks.job.calls.argument_fixes import BY_ARGUMENT, ORDER, fix_mismatch
from ddpdoctor_checks.job.calls.last import list_differing

LINE = Frame("train.py", 30, "evaluate")


@pytest.mark.parametrize(
    ("differs", "lines", "around", "fixes"),
    [
        (["dtype"], [LINE, LINE], [], [BY_ARGUMENT["dtype"]]),
        (["shape"], [LINE, LINE], [Frame("train.py", 28, "if")], [BY_ARGUMENT["shape"]]),
        (["shape"], [LINE, LINE], [Frame("train.py", 28, "for")], [BY_ARGUMENT["shape"], ORDER]),
        (["dtype"], [LINE, LINE], [Frame("train.py", 50, "for")], [BY_ARGUMENT["dtype"]]),
        (["dtype"], [LINE, LINE], [Frame("main.py", 5, "for")], [BY_ARGUMENT["dtype"]]),
        (["peer"], [LINE, LINE], [], [BY_ARGUMENT["peer"]]),
        (["reduction"], [LINE, LINE], [], [BY_ARGUMENT["reduction"]]),
        (["dtype"], [LINE, Frame("train.py", 31, "evaluate")], [], [ORDER]),
        (["dtype", "shape"], [LINE, LINE], [], [ORDER]),
        (["op"], [LINE, LINE], [], [ORDER]),
        (["dtype"], [LINE, None], [], [ORDER]),
        ([], [], [], [ORDER]),
    ],
)
def test_what_differs_decides_what_to_do(
    differs: list[str], lines: list[Frame | None], around: list[Frame], fixes: list[object]
) -> None:
    assert fix_mismatch(differs, lines, around) == fixes


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        (RecordedCall("all_reduce", inputs=((3,),), input_types=("float32",)),
         RecordedCall("all_reduce", inputs=((3,),), input_types=("int64",)), ["dtype"]),
        (RecordedCall("all_reduce", inputs=((2, 3),)), RecordedCall("all_reduce", inputs=((3, 2),)), []),
        (RecordedCall("all_reduce", inputs=((2, 3),)), RecordedCall("broadcast", inputs=((7,),), root=0),
         ["op", "shape", "peer"]),
        (RecordedCall("reduce", inputs=((2,),), root=0, reduction="sum"),
         RecordedCall("reduce", inputs=((2,),), root=1, reduction="max"), ["reduction", "peer"]),
    ],
)  # fmt: skip
def test_sizes_count_and_not_shapes(one: RecordedCall, other: RecordedCall, differing: list[str]) -> None:
    assert list_differing([one, other]) == differing
