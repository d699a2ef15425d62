"""Dumps are of one moment: what tells that a job hung in it, that it did not, and what is said where nothing tells."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, SCHEDULED, STARTED
from tests.checks.jobs import Job
from tests.checks.recorded import CREATED_NS, Made, first, judge, with_job

SECOND = 10**9


def missing(**more: Any) -> Made:
    """Rank 2 of four never made the fourth call, which the others began 0.04 s after `CREATED_NS`."""
    return dataclasses.replace(Made(4).together().call([0, 1, 3], "all_reduce", 88, 4, STARTED), **more)


def stage(made: Made | Evidence) -> tuple[str, str | None, str]:
    found = first(made)
    return found.details["moment"], found.severity, found.confidence


def test_dumps_that_a_time_out_made_are_of_a_hang() -> None:
    found = first(missing())
    assert (found.severity, found.confidence, str(found.ranks), found.decisive) == (
        "error",
        "high",
        "2",
        True,
    )
    assert any(
        "the dump of rank 0 was written 10 min after its call, whose timeout is 10 min" in each.text
        for each in found.evidence
    )


@pytest.mark.parametrize("written", [None, CREATED_NS + 30 * SECOND, CREATED_NS + 86_400 * SECOND])
def test_where_nothing_tells_the_rank_is_named_with_what_is_known(written: int | None) -> None:
    found = first(missing(written_ns=written))
    assert (found.code, str(found.ranks), str(found.victims)) == ("COL002", "2", "0-1,3")
    assert (found.severity, found.confidence, found.decisive) == ("warning", "medium", False)
    assert found.message == (
        "At the moment of the dumps ranks 0-1, 3 wait in all_reduce #4 (train.py:88); rank 2 had not issued "
        "it: its last collective was barrier #3 (train.py:12); there is no evidence of whether that was a hang."
    )
    assert "some minutes later" in found.fix[0].text


def test_ranks_that_had_waited_for_a_moment_are_no_hang() -> None:
    report = judge(missing(written_ns=CREATED_NS + 2 * SECOND))
    (found,) = report.findings
    assert {row.status for row in report.checks if row.id.startswith("recorder.")} == {"pass"}
    assert (found.severity, found.confidence, str(found.ranks), str(found.victims)) == ("info", "low", "", "")
    assert "the dumps were written 2.0 s after the call at the latest: no sign of a hang" in found.message
    assert {place.role for place in found.where} == {"condition"}


def test_a_file_that_is_older_than_its_calls_tells_nothing() -> None:
    """Clocks differ, or somebody set the time."""
    made = missing()
    for rank in (0, 1, 3):
        made.changes[rank] = {"written_ns": CREATED_NS - 500 * SECOND}
    assert stage(made) == ("open", "warning", "medium")


def test_a_rank_whose_dump_is_older_than_the_call_may_have_made_it() -> None:
    made = missing(written_ns=CREATED_NS + 60 * SECOND)
    made.changes[2] = {"written_ns": CREATED_NS + SECOND // 100}
    found = judge(made).findings[0]
    assert (found.severity, found.details["moment"]) == ("info", "passing")
    assert "the dump of rank 2 was written before the others issued the collective" in found.message


def test_a_call_that_failed_on_a_rank_was_a_hang_or_worse() -> None:
    made = Made(4).together().call([0, 1, 3], "all_reduce", 88, 4, SCHEDULED + RETIRED)
    made.written_ns = None
    found = first(made)
    assert (found.severity, str(found.ranks)) == ("error", "2")
    assert any("the collective failed on ranks 0-1, 3" in each.text for each in found.evidence)


@pytest.mark.parametrize(("still", "told"), [(400, "hung"), (60, "open")])
def test_two_dumps_tell_whether_the_late_rank_has_called_anything(still: int, told: str) -> None:
    made = missing(written_ns=None)
    made.changes[2] = {"still_ns": still * SECOND}
    assert stage(made)[0] == told


@pytest.mark.parametrize(("later", "told"), [(400, "hung"), (60, "open")])
def test_calls_of_other_groups_tell_for_how_long_ranks_have_waited(later: int, told: str) -> None:
    made = missing(written_ns=None).call(
        [0, 1, 3], "all_reduce", 90, later * 100, COMPLETED + RETIRED, group="7"
    )
    assert stage(made)[0] == told


def test_a_job_that_failed_waited_for_good() -> None:
    made = missing(written_ns=CREATED_NS + 2 * SECOND)
    found = judge(with_job(made, Job(4).complains([0, 1, 3], 10.2).terminates([2], 10.5))).findings[0]
    assert (found.code, found.severity, str(found.ranks)) == ("COL002", "error", "2")


def test_a_job_that_ended_well_got_on() -> None:
    made = missing(written_ns=None)
    job = Job(4)
    for rank in range(4):
        job.set(rank, exit_code=0)
    evidence = with_job(made, job)
    evidence = dataclasses.replace(
        evidence, job=tuple(dataclasses.replace(each, exit_code=0) for each in evidence.job)
    )
    found = judge(evidence).findings[0]
    assert (found.details["moment"], found.severity) == ("passing", "info")
    assert "ranks 0-1, 3 continued and exited cleanly" in found.message


def test_a_rank_without_a_dump_is_looked_for_however_short_the_others_waited() -> None:
    made = missing(written_ns=CREATED_NS + 2 * SECOND)
    del made.rows[2]
    found = first(made)
    assert (found.code, found.severity, str(found.ranks)) == ("COL005", "warning", "2")


def test_ranks_that_are_all_in_one_call_of_a_running_job_are_no_problem() -> None:
    made = Made(4).together().call(range(4), "all_reduce", 88, 4, STARTED)
    made.written_ns = CREATED_NS + SECOND
    (found,) = judge(made).findings
    assert (found.code, found.severity) == ("COL005", "info")


def test_calls_that_do_not_fit_are_wrong_at_any_moment() -> None:
    made = (
        Made(3).together().call([0, 1], "all_reduce", 88, 4, STARTED).call([2], "broadcast", 90, 4, STARTED)
    )
    made.written_ns = CREATED_NS + SECOND
    found = first(made)
    assert (found.code, found.severity) == ("COL003", "error")
