"""Operations between ranks: wrong values, exceptions, initialisation."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import CollectiveCase, Evidence, InitResult, RankError, RankMessage, RankSet
from ddpdoctor.judge import Registry, order_findings, run_checks
from ddpdoctor.testing import (
    assert_finds,
    assert_passes,
    assert_status,
    collect_checks,
    judge_one,
    make_world,
)
from ddpdoctor_checks import collectives, register
from ddpdoctor_checks.collectives import OPERATIONS, case_bytes, describe_case, normalise_operation


def make_case(op: str = "all_reduce", **changes: Any) -> CollectiveCase:
    case = CollectiveCase(
        op, "gloo", "float32", 1023, "SUM" if "reduce" in op else None, passed=RankSet.span(4)
    )
    return replace(case, **changes)


def fail_case(op: str, *said: tuple[str, str], **changes: Any) -> CollectiveCase:
    messages = tuple(RankMessage(RankSet.parse(ranks), text) for ranks, text in said)
    passed = RankSet.span(4).minus(RankSet().union(*(each.ranks for each in messages)))
    return make_case(op, **{"failures": messages, "passed": passed, **changes})


def with_cases(*cases: CollectiveCase, nproc: int = 4) -> Evidence:
    world = make_world(1, nproc)
    kept = [each for each in world.collectives if each.op not in {case.op for case in cases}]
    return replace(world, collectives=(*kept, *cases))


def with_stage(world: Evidence, **changes: Any) -> Evidence:
    stages = tuple(replace(each, **changes) if each.stage == "collectives" else each for each in world.stages)
    return replace(world, stages=stages)


def codes_in_order(evidence: Evidence) -> list[tuple[str, str]]:
    registry = Registry()
    register(registry)
    _, findings = run_checks(registry.checks, evidence)
    return [(each.code, each.role) for each in order_findings(findings, registry.checks)]


WRONG = "expected 6 at element 0, got 5 (1 of 1023 elements differ)"


def test_a_wrong_sum_names_operation_type_size_and_ranks() -> None:
    world = with_cases(make_case(), fail_case("all_reduce", ("2", WRONG), dtype="int64"))
    found = assert_finds(collectives.find_result_wrong, world, code="COL001", severity="error")
    assert found.message == (
        f"all_reduce (SUM) of 1,023 int64 (8.0 KiB a rank) with gloo returned incorrect values on rank 2: {WRONG}."
    )
    assert (str(found.ranks), found.nodes) == ("2", ("node-0",))
    assert found.details["cases"] == [
        {
            "op": "all_reduce",
            "dtype": "int64",
            "count": 1023,
            "bytes": 8184,
            "reduction": "SUM",
            "group": "world",
            "ranks": "2",
        }
    ]


def test_several_wrong_cases_of_one_operation_are_one_finding() -> None:
    cases = [fail_case("all_gather", (str(rank), WRONG), count=rank + 1) for rank in range(3)]
    found = assert_finds(collectives.find_result_wrong, with_cases(*cases))
    assert "(and in 2 more cases of 3)" in found.message
    assert str(found.ranks) == "0-2"


def test_many_wrong_cases_are_capped_and_counted() -> None:
    cases = [fail_case("broadcast", ("1", WRONG), count=count) for count in range(1, 81)]
    found = assert_finds(collectives.find_result_wrong, with_cases(*cases))
    assert (len(found.details["cases"]), found.details["cases_left_out"]) == (50, 30)
    assert len(found.evidence) == 7


def test_wrong_values_with_nccl_lead_to_peer_to_peer_copies() -> None:
    found = assert_finds(
        collectives.find_result_wrong, with_cases(fail_case("reduce", ("0", WRONG), backend="nccl"))
    )
    assert (found.fix[0].command or "").startswith("NCCL_P2P_DISABLE=1 ddpdoctor check")


def test_a_wrong_subgroup_is_its_own_row() -> None:
    world = with_cases(make_case(), fail_case("all_reduce", ("2", WRONG), group="sub-group"))
    found = assert_finds(collectives.find_result_wrong, world, id="col.subgroup.exact")
    assert "in sub-group" in found.message
    assert_passes(collectives.find_result_wrong, world, id="col.all_reduce.exact")


def test_what_the_backend_does_not_have_is_skipped() -> None:
    refused = make_case(
        "reduce_scatter", passed=RankSet(), unsupported="gloo does not support reduce_scatter"
    )
    world = with_cases(refused)
    why = assert_status(collectives.find_result_wrong, world, "skipped", id="col.reduce_scatter.exact")
    assert why == "gloo does not support reduce_scatter"


def test_one_type_that_is_not_supported_does_not_hide_the_others() -> None:
    refused = make_case(dtype="bool", passed=RankSet(), unsupported="Invalid scalar type")
    world = with_cases(make_case(), refused)
    assert_passes(collectives.find_result_wrong, world, id="col.all_reduce.exact")


def test_an_operation_that_raises_is_told_once_and_leaves_its_row_unknown() -> None:
    world = with_cases(fail_case("scatter", ("1,3", "RuntimeError: [enforce fail] no memory")))
    error = RankError(1, "collectives", "ProbeError", "scatter of float32 failed: RuntimeError: no memory")
    world = replace(world, errors=(error,))
    why = assert_status(collectives.find_result_wrong, world, "unknown", id="col.scatter.exact")
    assert why == "scatter raised on ranks 1, 3"
    found = assert_finds(collectives.find_operation_raised, world, code="BKD002")
    assert "raised on ranks 1, 3: RuntimeError: [enforce fail] no memory" in found.message
    assert codes_in_order(world) == [("BKD002", "cause")]


def test_the_rank_with_its_own_exception_is_blamed_before_those_that_lost_it() -> None:
    world = with_cases(
        fail_case(
            "barrier",
            ("0-2", "RuntimeError: Connection closed by peer [127.0.0.1]:3"),
            ("3", "RuntimeError: cuda error: an illegal memory access"),
        )
    )
    found = assert_finds(collectives.find_operation_raised, world)
    assert (str(found.ranks), str(found.victims), found.confidence) == ("3", "0-2", "high")


def test_complaints_point_to_the_rank_that_left_no_result() -> None:
    """Ranks lose a killed peer in different operations; rank 0 was done with the first before it died."""
    world = with_cases(
        fail_case("scatter", ("3", "RuntimeError: Connection closed by peer"), passed=RankSet([0, 1])),
        fail_case("gather", ("0", "RuntimeError: Read error: Connection reset by peer"), passed=RankSet()),
    )
    found = assert_finds(collectives.find_operation_raised, world)
    assert (str(found.ranks), str(found.victims), found.confidence) == ("2", "0,3", "medium")
    assert found.message.endswith("; so did gather; rank 2 left no result")


def test_complaints_of_all_leave_the_culprit_open() -> None:
    world = with_cases(fail_case("barrier", ("0-3", "RuntimeError: Timed out waiting 28000ms for recv")))
    found = assert_finds(collectives.find_operation_raised, world)
    assert (str(found.ranks), str(found.victims), found.confidence) == ("0-3", "", "medium")


def test_wrong_values_are_no_exceptions() -> None:
    assert_passes(collectives.find_operation_raised, with_cases(fail_case("reduce", ("0", WRONG))))


def test_an_operation_that_was_not_reached_is_unknown() -> None:
    world = make_world(1, 4)
    world = replace(world, collectives=tuple(each for each in world.collectives if each.op != "barrier"))
    world = with_stage(world, status="cut", reason="30 s")
    why = assert_status(collectives.find_result_wrong, world, "unknown", id="col.barrier.exact")
    assert why == "stage collectives was stopped at its limit (30 s) before barrier had a result"


def test_a_rank_that_was_lost_in_a_cut_stage_does_not_pass() -> None:
    world = with_cases(make_case(passed=RankSet([0, 1])))
    world = with_stage(world, status="cut", finished=RankSet(), unfinished=RankSet.span(4))
    why = assert_status(collectives.find_result_wrong, world, "unknown", id="col.all_reduce.exact")
    assert "ranks 2-3" in why


def test_a_part_of_the_ranks_is_not_the_world() -> None:
    """The evidence of others did not arrive: what two ranks of four saw is not that the operation works."""
    world = with_cases(make_case(passed=RankSet([0, 1])))
    why = assert_status(collectives.find_result_wrong, world, "unknown", id="col.all_reduce.exact")
    assert why == "ranks 2-3 left no result"


def test_point_to_point_in_a_world_of_one_rank_is_skipped() -> None:
    world = make_world(1, 1)
    world = replace(world, collectives=tuple(each for each in world.collectives if each.op != "send_recv"))
    assert_status(collectives.find_result_wrong, world, "skipped", id="col.send_recv.exact")


def test_a_deselected_stage_is_skipped() -> None:
    world = make_world(1, 2, collectives=())
    stages = tuple(each for each in world.stages if each.stage != "collectives")
    world = replace(world, stages=stages, launch=replace(world.launch, stages=("facts",)))
    assert_status(collectives.find_result_wrong, world, "skipped")
    assert_status(collectives.find_operation_raised, world, "skipped")


def test_wrong_sums_explain_wrong_gradients() -> None:
    world = with_cases(fail_case("all_reduce", ("1", WRONG)))
    experiments = tuple(
        replace(each, passed=RankSet(), failures=(RankMessage(RankSet.span(4), "w is not the mean"),))
        if each.name in ("gradient-mean", "replicas-equal", "checkpoint")
        else each
        for each in world.experiments
    )
    cause, *rest = codes_in_order(replace(world, experiments=experiments))
    assert cause == ("COL001", "cause")
    assert sorted(rest) == [(code, "consequence") for code in ("CKP006", "DDP019", "NUM001")]


def test_every_operation_of_the_probes_has_a_row() -> None:
    from ddpdoctor.launch.probes.operations import RUNNERS

    known = {name for names in OPERATIONS.values() for name in names}
    assert {normalise_operation(name) for name in RUNNERS} <= known


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("send/recv", "send_recv"),
        ("dist.all_reduce", "all_reduce"),
        ("Batch isend-irecv", "batch_isend_irecv"),
    ],
)
def test_names_of_operations_are_normalised(name: str, expected: str) -> None:
    assert normalise_operation(name) == expected


def test_sizes_are_given_where_the_type_has_one() -> None:
    assert case_bytes(make_case(dtype="bfloat16", count=3)) == 6
    objects = make_case("all_gather_object", dtype="object", count=1)
    assert case_bytes(objects) is None
    assert describe_case(objects) == "all_gather_object of 1 object with gloo"


@pytest.mark.parametrize("method", ["env", "tcp", "file"])
def test_a_way_to_initialise_that_fails_is_named(method: str) -> None:
    failed = InitResult(
        method, RankSet([0, 2, 3]), (RankMessage(RankSet([1]), "RuntimeError: no such file"),)
    )
    world = make_world(1, 4)
    others = tuple(each for each in world.initialisations if each.method != method)
    world = replace(world, initialisations=(*others, failed))
    found = assert_finds(
        collectives.find_initialisation_failed,
        world,
        code="BKD002",
        severity="error" if method == "env" else "warning",
    )
    assert f"init_process_group by {method}:// with gloo failed on rank 1" in found.message
    assert "init_process_group" in (found.fix[0].code or "")


def test_a_default_group_that_did_not_form_is_not_told_twice() -> None:
    failed = InitResult("env", failures=(RankMessage(RankSet.span(2), "RuntimeError: no"),))
    errors = tuple(RankError(rank, "rendezvous", "RuntimeError", "no") for rank in range(2))
    world = make_world(1, 2, initialisations=(failed,), errors=errors)
    assert_status(collectives.find_initialisation_failed, world, "unknown", id="col.init.env")
    assert [code for code, _ in codes_in_order(world)].count("BKD002") == 1


def test_initialisation_that_was_skipped_or_lost_a_rank() -> None:
    results = (InitResult("tcp", skipped="one node only"), InitResult("file", RankSet([0])))
    world = make_world(1, 2, initialisations=results)
    assert assert_status(collectives.find_initialisation_failed, world, "skipped", id="col.init.tcp")
    assert "rank 1" in assert_status(
        collectives.find_initialisation_failed, world, "unknown", id="col.init.file"
    )


@pytest.mark.unmeasured
def test_16384_ranks_of_which_some_are_wrong_are_judged_in_seconds() -> None:
    size = 16384
    wrong = RankSet(range(0, size, 3))
    case = make_case(
        passed=RankSet.span(size).minus(wrong),
        failures=tuple(
            RankMessage(RankSet([rank]), f"expected {rank} at element 0, got 0") for rank in wrong
        ),
    )
    world = make_world(2048, 8)
    world = replace(world, collectives=(*world.collectives, case))
    checks = [
        each
        for function in (collectives.find_result_wrong, collectives.find_initialisation_failed)
        for each in collect_checks(function)
    ]
    started = time.perf_counter()
    rows, findings = run_checks(checks, world)
    assert time.perf_counter() - started < 120  # not quadratic; the bar itself is the benchmark's
    assert [each.code for each in findings] == ["COL001"]
    assert len(findings[0].ranks) == len(wrong)
    assert len(findings[0].message) < 400
    assert "error" not in {row.status for row in rows}


def test_a_healthy_world_passes() -> None:
    for world in (make_world(1, 4), make_world(3, 2)):
        for function in (
            collectives.find_result_wrong,
            collectives.find_operation_raised,
            collectives.find_initialisation_failed,
        ):
            rows, findings = judge_one(function, world)
            assert (findings, {row.status for row in rows}) == ([], {"pass"})
