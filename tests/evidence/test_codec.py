from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddpdoctor.evidence import (
    Absent,
    Evidence,
    Experiment,
    Frame,
    Launch,
    Leftover,
    NodeFacts,
    RankError,
    RankExit,
    RankSet,
    Rendezvous,
    RendezvousFile,
    SmokeResult,
    StackClass,
    StageRecord,
    UserError,
    decode,
    encode,
)
from ddpdoctor.evidence.codec import mend
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.testing import make_node, make_world


@dataclass(frozen=True, slots=True)
class Sample:
    """Every kind of field that evidence has."""

    number: int
    share: float = 0.5
    name: str | None = None
    flag: bool = False
    who: RankSet = field(default_factory=RankSet)
    pairs: tuple[tuple[int, str], ...] = ()
    frames: tuple[Frame, ...] | None = None
    facts: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    anything: Any = None


def travel(evidence: Evidence) -> Evidence:
    return Evidence.from_dict(json.loads(json.dumps(evidence.to_dict(), allow_nan=False)))


def test_whole_evidence_survives_json() -> None:
    world = make_world(3, 2)
    rich = dataclasses.replace(
        world,
        nodes=(
            *world.nodes[1:],
            make_node(
                0,
                leftovers=(Leftover(7, 1, 3.5, "python train.py", ports=(29500,), devices=("cuda:0",)),),
                rendezvous_files=(RendezvousFile("/tmp/f", "DIST_URL", True, 12, 3.0, (4,)),),
            ),
        ),
        stages=(
            StageRecord(
                0,
                "ddp",
                "cut",
                finished=RankSet([1]),
                stacks=(StackClass(RankSet([0]), (Frame("a.py", 3, "f"),), "D"),),
            ),
        ),
        errors=(RankError(1, "ddp", "ValueError", "no", (Frame("a.py", 3, "f"),)),),
        exits=(RankExit(1, 99, "ddp", signal=9),),
        smoke=(SmokeResult(0, "cuda:0", False, killable=False),),
        rendezvous=(
            Rendezvous(0, "c10d", "a:1", 2, (0,), 4, RankSet([0, 1]), 1.0, 2.0, duplicates=((1, "a", "b"),)),
        ),
        absent={"bandwidth": Absent("not selected", applicable=False)},
        extra={"dist/disk": {"0": {"free": 3}}},
    )
    assert travel(rich) == rich


def test_unknown_keys_are_ignored_and_missing_ones_take_defaults() -> None:
    assert decode(Sample, {"number": 3, "since_version_9": [1]}) == Sample(3)


@pytest.mark.parametrize("special", [math.inf, -math.inf])
def test_infinities_travel_as_text(special: float) -> None:
    data = encode(Sample(1, share=special, facts={"loss": special}))
    assert data["share"] == str(special)
    assert decode(Sample, json.loads(json.dumps(data, allow_nan=False))).share == special


def test_nan_travels_as_text() -> None:
    data = json.loads(
        json.dumps(encode(Experiment("autocast", largest_difference=math.nan)), allow_nan=False)
    )
    difference = decode(Experiment, data).largest_difference
    assert difference is not None
    assert math.isnan(difference)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"number": None},
        {"number": "3"},
        {"number": True},
        {"number": 1.5},
        {"number": 1, "share": "half"},
        {"number": 1, "name": 4},
        {"number": 1, "flag": 1},
        {"number": 1, "who": [0, 1]},
        {"number": 1, "who": "x"},
        {"number": 1, "who": None},
        {"number": 1, "pairs": "ab"},
        {"number": 1, "pairs": [[1]]},
        {"number": 1, "frames": {"file": "a"}},
        {"number": 1, "frames": [{"file": "a"}]},
        {"number": 1, "facts": [1]},
        {"number": 1, "facts": {"a": [1]}},
        [],
        "text",
        None,
    ],
)
def test_data_that_does_not_fit_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(Sample, data)


def test_whole_numbers_are_good_for_fractions() -> None:
    assert decode(Sample, {"number": 1, "share": 2}).share == 2.0


def test_older_files_without_newer_fields_can_be_read() -> None:
    data = make_world(2, 2).to_dict()
    for row in data["nodes"]:
        for added in ("rendezvous_files", "tracing", "clock_error_s"):
            row.pop(added, None)
    data.pop("extra")
    read = Evidence.from_dict(data)
    assert isinstance(read.nodes[0], NodeFacts)
    assert read.nodes[0].rendezvous_files is None
    assert isinstance(read.launch, Launch)


def test_optional_fields_accept_null() -> None:
    error = UserError("raised", "forward", "no", line=None)
    assert decode(UserError, json.loads(json.dumps(encode(error)))) == error


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 10**9), ("rank", -2), ("world_size", 1 << 40), ("attempt", 1 << 30)]
)
def test_numbers_that_no_job_has_are_refused(field: str, value: int) -> None:
    data = {**encode(ProcessRecord(1)), field: value}
    with pytest.raises(ValueError, match=f"{field} .* out of all bounds"):
        decode(ProcessRecord, data)


def test_a_record_is_mended_field_by_field() -> None:
    broken = ProcessRecord(1, rank="x", backend=["gloo"], attempt=1 << 40, host="node-a")  # type: ignore[arg-type]
    assert mend(broken) == (ProcessRecord(1, host="node-a"), ["attempt", "backend", "rank"])
    whole = ProcessRecord(1, rank=3)
    assert mend(whole) == (whole, [])


def test_a_record_without_what_makes_it_one_is_not_mended() -> None:
    with pytest.raises(ValueError, match="pid"):
        mend(ProcessRecord("x"))  # type: ignore[arg-type]
