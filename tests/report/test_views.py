"""The view data: folding, ordering and wording, without a page around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.evidence import (
    BackendResult,
    CollectiveCase,
    Cpus,
    Device,
    Evidence,
    Frame,
    Launch,
    Leftover,
    Link,
    ModelResult,
    PairRow,
    RankError,
    RankExit,
    RankSet,
    StackClass,
    StageRecord,
)
from ddpdoctor.judge import CheckRow, Finding
from ddpdoctor.report import Job, Node, RenderOptions
from ddpdoctor.report.html.bandwidth import view_bandwidth
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.checks import view_checks
from ddpdoctor.report.html.findings import parse_blocks, parse_pieces, view_findings
from ddpdoctor.report.html.links import view_links
from ddpdoctor.report.html.matrix import view_environment
from ddpdoctor.report.html.results import view_results
from ddpdoctor.report.html.stages import view_stages
from ddpdoctor.report.html.view import build_view
from ddpdoctor.report.html.world import view_world
from tests.report.parts import make_bandwidth, make_node, make_pairs, make_rank
from tests.report.samples import sample_healthy, sample_nodes, sample_problems


def details(**values: Any) -> dict[str, Any]:
    finding = Finding("m", code="C", name="n", severity="error", details=values)
    (view,) = view_findings((finding,), 8, {}, Caps())
    return {each.name: each.rows or each.text for each in view.details}


def test_details_are_written_by_their_kind() -> None:
    assert details(
        none=None,
        yes=True,
        share=0.123456,
        ranks=[0, 1, 2, 5],
        sizes=[1, 2],
        empty=[],
        by_rank={"0": [1, 2]},
        rows=[{"a_b": 1}, {"c": "x"}],
        nested=[[1], [2]],
    ) == {
        "none": "unknown",
        "yes": "yes",
        "share": "0.1235",
        "ranks": "ranks 0-2, 5",
        "sizes": "1, 2",
        "empty": "none",
        "by rank": (("0", "ranks 1-2"),),
        "rows": (("1", "unknown"), ("unknown", "x")),
        "nested": "[[1], [2]]",
    }


def test_only_the_first_active_cause_is_the_root_cause() -> None:
    first = Finding("m", code="A", name="a", severity="error")
    views = view_findings((first, replace(first, code="B"), replace(first, role="advice")), 4, {}, Caps())
    assert [view.role for view in views] == ["root cause", "cause", "advice"]
    assert view_findings((replace(first, state="withdrawn"), first), 4, {}, Caps())[0].role == "cause"


def test_code_pages_become_blocks_and_links_stay_http() -> None:
    blocks = parse_blocks(
        "Intro with `code`.\n\nlead:\n* one\n  more\n* two\n\n    kept  as\n      is\n\nhttps://a.org/x ;\nhttps://b.org"
    )
    assert [block.kind for block in blocks] == ["p", "p", "ul", "pre", "ul"]
    assert [piece.text for line in blocks[2].lines for piece in line] == ["one more", "two"]
    assert blocks[3].lines[0][0].text == "kept  as\n  is"
    assert [line[0].text for line in blocks[4].lines] == ["https://a.org/x", "https://b.org"]
    pieces = parse_pieces("see ``a.b`` at https://a.org/x. javascript:alert(1) data:text/html,x")
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("text", "see "),
        ("code", "a.b"),
        ("text", " at "),
        ("link", "https://a.org/x"),
        ("text", "."),
        ("text", " javascript:alert(1) data:text/html,x"),
    ]


def test_equal_reasons_are_said_once_and_counted() -> None:
    rows = tuple(CheckRow(f"a.{n}", ("X001",), "ddp", "unknown", "cut", 0.0, "other") for n in range(30))
    view = view_checks((*rows, CheckRow("a.p", ("X001",), "ddp", "pass", None, 0.0, "ddpdoctor")), Caps())
    (family,) = view.families
    assert family.name == "DDP"
    assert [(group.reason, len(group.checks)) for group in family.notable] == [("cut", 30)]
    assert family.notable[0].checks[0].source == "other"
    assert view.reasons == (("cut", 30),)
    assert family.counts == (("pass", 1), ("unknown", 30))


def test_variable_with_many_values_shows_the_usual_and_the_odd_ones() -> None:
    ranks = tuple(make_rank(n, 64, "h", 64, "cpu", LANG=str(n % 16) if n else "odd") for n in range(64))
    view = view_environment(Evidence(ranks=ranks), Caps())
    (row,) = view.differ
    assert row.name == "LANG"
    assert len(row.values) == 8
    assert row.hidden == 9
    assert row.values[-1].text == "odd"
    assert row.values[-1].who == "rank 0"
    assert {each.name for each in view.by_design} >= {"RANK", "LOCAL_RANK"}


def test_strip_is_left_out_where_it_would_be_noise() -> None:
    ranks = tuple(make_rank(n, 512, "h", 512, "cpu", A=str(n % 2)) for n in range(512))
    assert view_environment(Evidence(ranks=ranks), Caps()).differ[0].strip is None


def test_variables_of_nodes_are_shown_where_no_rank_reported() -> None:
    nodes = tuple(make_node(n, f"h{n}", variables={"A": str(n), "B": "1"}) for n in range(2))
    view = view_environment(Evidence(nodes=nodes), Caps())
    assert [(row.name, [value.who for value in row.values]) for row in view.differ] == [("A", ["h0", "h1"])]
    assert ("B", "variable", "1") in view.equal
    assert view.subjects == "2 nodes"


def test_nodes_of_one_host_name_keep_their_own_facts() -> None:
    nodes = (make_node(0, "same", cpus=Cpus(4, 4)), make_node(1, "same", cpus=Cpus(8, 8)))
    report = replace(sample_healthy(), evidence=Evidence(nodes=nodes))
    world = replace(report.world, nodes=tuple(Node("same", RankSet([n]), (), {"node": n}) for n in range(2)))
    view = view_world(replace(report, world=world), Caps())
    assert [dict(node.facts)["Cores"] for node in view.nodes] == ["4 cores", "8 cores"]
    assert "Memory" in dict(view.shared)


def test_node_notes_warn_of_leftovers_and_name_errors() -> None:
    node = make_node(
        0,
        "h",
        leftovers=(Leftover(1, 1, 5.0, "x"),),
        name_error="no address",
        route_address="10.9.9.9",
        devices=(Device(0, name="A"), Device(1, name="A"), Device(2, name="B")),
        rdma_devices=("mlx5_0",),
    )
    report = replace(sample_healthy(), evidence=Evidence(nodes=(node,)))
    report = replace(report, world=replace(report.world, nodes=(Node("h", RankSet([0])),)))
    (view,) = view_world(report, Caps()).nodes
    assert view.notes == (("own host name: no address", True), ("1 process left by earlier jobs", True))
    assert view.devices == ("2 × A", "B")
    assert dict(view.facts)["Route to master"] == "10.9.9.9"
    assert dict(view.facts)["RDMA"] == "mlx5_0"


@pytest.mark.parametrize(
    ("count", "drawn", "folded"), [(4, False, False), (17, True, False), (65, True, True)]
)
def test_heat_map_is_a_table_a_drawing_or_blocks(count: int, drawn: bool, folded: bool) -> None:
    caps = Caps()
    (view,) = view_links(Evidence(pairs=make_pairs(count, "rank", (0, 1))), caps).maps
    assert (view.drawing is not None) is drawn
    assert (view.folded is not None) is folded
    assert bool(caps.notes) is folded
    if drawn:
        assert [pair for pair, _, _ in view.slowest[:2]] in (["0 → 1", "1 → 0"], ["1 → 0", "0 → 1"])
    else:
        assert view.rows[0][1].level == "q0"
        assert view.rows[0][0].level == "self"


def test_best_of_several_rounds_counts() -> None:
    rows = (PairRow(0, 1, "node", 1, 1.0, 2.0, 0), PairRow(0, 1, "node", 1, 1.0, 4.0, 1))
    (view,) = view_links(Evidence(pairs=rows), Caps()).maps
    assert view.rows[0][0].text == "4"


def test_failed_connection_wins_over_a_good_one_and_tells_sizes() -> None:
    links = (
        Link(0, 1, "large", True),
        Link(0, 1, "large", False, "10.0.0.2", bytes_passed=1400, bytes_failed=9000),
    )
    view = view_links(Evidence(links=links), Caps())
    assert view.maps[0].rows[0][0].text == "failed"
    assert view.failures == (
        ("node 0 → node 1", "large", "no connection, 10.0.0.2, 1,400 bytes pass, 9,000 do not"),
    )


def test_stage_takes_the_worst_end_of_its_nodes() -> None:
    frame = (Frame("a.py", 1, "f"),)
    records = (
        StageRecord(0, "ddp", "passed", None, 1.0, 2.0, 30.0),
        StageRecord(
            1, "ddp", "cut", "late", 1.5, 9.0, 30.0, RankSet([2]), RankSet([3]), stacks_note="no py-spy"
        ),
        StageRecord(2, "ddp", "cut", "late", 1.5, 8.0, 30.0, stacks=(StackClass(RankSet([5]), frame, "D"),)),
        StageRecord(0, "own", "odd"),
    )
    evidence = Evidence(
        stages=records,
        errors=tuple(RankError(n, "ddp", "E", "same", frame) for n in range(4)),
        exits=(RankExit(1, 9, "elsewhere", exit_code=3), RankExit(2, 9, None)),
    )
    view = view_stages(evidence, {"judge": 0.1, "facts": 0.5}, 12.0, Caps())
    facts, ddp, own = view.stages
    assert (facts.status, facts.duration) == ("passed", "500 ms")
    assert (ddp.status, ddp.start, ddp.duration) == ("cut", "1 s", "9 s")
    assert ddp.notes == (
        "rank 3 did not finish",
        "late (2 nodes)",
        "no stacks: no py-spy (1 node)",
        "elsewhere: passed on 1 node",
    )
    assert [error.ranks for error in ddp.errors] == ["ranks 0-3"]
    assert ddp.stacks[0].state == "D"
    assert own.status_words == "odd"
    assert [error.words for error in view.loose] == ["exited with code 3", "gone, exit status unknown"]
    assert [name for name, _, _ in view.other] == ["judge"]


def test_one_size_is_a_point_with_a_whisker() -> None:
    (curve,) = view_bandwidth(Evidence(bandwidth=make_bandwidth(4)[:1]), Caps()).curves
    assert curve.drawing is not None
    assert "whisker" in curve.drawing
    assert "curve-line" not in curve.drawing


def test_curves_above_the_cap_are_stated() -> None:
    caps = Caps()
    rows = tuple(replace(row, dtype=f"t{n}") for n in range(8) for row in make_bandwidth(4))
    (curve,) = view_bandwidth(Evidence(bandwidth=rows), caps).curves
    assert len(curve.series) == 6
    assert "curves of all_reduce: 6 of 8 shown" in caps.notes


def test_backends_and_collectives_say_how_they_ended() -> None:
    evidence = Evidence(
        backends=(
            BackendResult("gloo", True, "cpu", group=RankSet.span(2), collective=RankSet.span(2)),
            BackendResult("mpi", False),
            BackendResult("nccl", True, device_present=False, reason="no GPU"),
            BackendResult("ucc", True, version="1.2"),
        ),
        collectives=(
            CollectiveCase("barrier", "gloo", "none", 0, passed=RankSet.span(2)),
            CollectiveCase("barrier", "nccl", "none", 0),
            CollectiveCase("gather", "nccl", "int8", 1, unsupported="no"),
        ),
        model=(ModelResult("m:f"),),
    )
    view = view_results(evidence, 2, Caps())
    assert [(each.name, each.status, each.words) for each in view.backends] == [
        ("gloo", "pass", "works on both ranks with tensors on cpu"),
        ("mpi", "skipped", "not in this PyTorch build"),
        ("nccl", "skipped", "no GPU"),
        ("ucc 1.2", "skipped", "not tried"),
    ]
    assert view.grid is not None
    assert view.grid.columns == ("gloo none", "nccl none", "nccl int8")
    assert [[cell.status for cell in cells] for _, cells in view.grid.rows] == [
        ["pass", "fail", "none"],
        ["none", "none", "skipped"],
    ]
    assert view.grid.unsupported == (("no", "gather, nccl int8"),)
    assert dict(view.models[0].facts)["Static graph possible"] == "could not be determined"


def test_headline_is_left_as_it_is_but_for_what_is_said_beside_it() -> None:
    report = sample_problems()
    verdict = replace(report.verdict, headline="node-a: wrong")
    assert build_view(replace(report, verdict=verdict), RenderOptions()).verdict.headline == "node-a: wrong"
    unknown = replace(verdict, status="unknown", headline="too little; 18 of 23 checks ran")
    assert build_view(replace(report, verdict=unknown), RenderOptions()).verdict.headline == "Too little"


def test_warnings_alone_are_not_red() -> None:
    report = sample_nodes()
    warning = replace(report, findings=report.findings[1:])
    assert build_view(report, RenderOptions()).verdict.tone == "problems"
    assert build_view(warning, RenderOptions()).verdict.tone == "warning"


def test_odd_times_and_jobs_are_shown_as_they_are() -> None:
    report = replace(sample_problems(), started_at="yesterday", job=Job(None, 9))
    view = build_view(report, RenderOptions())
    assert view.started == "yesterday"
    assert dict(view.facts)["job"] == "ended by signal 9"
    assert (
        dict(build_view(replace(report, job=Job(None)), RenderOptions()).facts)["job"]
        == "exit status unknown"
    )
    assert (
        "1,024 ranks on 16 nodes"
        in dict(
            build_view(
                replace(
                    report,
                    world=replace(report.world, size=1024),
                    evidence=Evidence(launch=Launch(nnodes=16)),
                ),
                RenderOptions(),
            ).facts
        ).values()
    )
