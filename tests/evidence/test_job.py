"""Evidence of jobs: it survives being saved, and its ranks are known to the checks of launches."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, Frame
from ddpdoctor.evidence.job import (
    ExceptionRecord,
    Moment,
    ProcessRecord,
    WrappedParameter,
    WrapperFacts,
)
from ddpdoctor.evidence.job_ranks import describe_ranks


def test_exceptions_with_chains_and_wrappers_survive_being_saved() -> None:
    low = ExceptionRecord(7, "OSError", "disk", (Frame("a.py", 1, "f", "open(path)"),), link="cause")
    evidence = Evidence(
        processes=(ProcessRecord(7, exit_text="no data", init_method="file:///tmp/x"),),
        exceptions=(
            ExceptionRecord(7, "ValueError", "odd", chain=(low,), parent_frames=low.frames, at=Moment(3, 4)),
        ),
        wrappers=(WrapperFacts(7, "Net", (WrappedParameter(2, "b.weight", forward_ran=False),)),),
    )
    assert Evidence.from_dict(evidence.to_dict()) == evidence


def test_ranks_of_the_last_attempt_are_described_in_order() -> None:
    def process(rank: int | None, attempt: int, role: str = "rank", **variables: str) -> ProcessRecord:
        return ProcessRecord(
            100 * attempt + (rank or 0), node=1, host="b", role=role, rank=rank, local_rank=rank, world_size=2,
            attempt=attempt, variables=variables, torch="2.13.0",
        )  # fmt: skip

    found = describe_ranks(
        [
            process(1, 1, RANK="1"),
            process(0, 1, RANK="0"),
            process(0, 0, RANK="0"),
            process(0, 1, role="loader-worker", RANK="0"),
            process(None, 1, RANK="5"),
            process(3, 1),
        ]
    )
    assert [(each.rank, each.pid, each.host, each.variables) for each in found] == [
        (0, 100, "b", {"RANK": "0"}),
        (1, 101, "b", {"RANK": "1"}),
    ]
    assert {each.versions["torch"] for each in found} == {"2.13.0"}


def test_job_without_ranks_has_none() -> None:
    assert describe_ranks([]) == ()
