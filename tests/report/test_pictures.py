"""The picture that stands first: which one it is, and what it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.job import ExceptionRecord, JobEnd, Moment, ProcessRecord
from ddpdoctor.evidence.layout import Axis, Layout
from ddpdoctor.evidence.standstill import Stand, Standstill
from ddpdoctor.evidence.timeline import TimedEvent
from ddpdoctor.evidence.training.fingerprints import (
    BatchLook,
    EpochLook,
    OptimizerSetup,
    StepLook,
    TensorLook,
    Training,
)
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.gather.excerpts import SourceReader
from ddpdoctor.judge.finding import Finding, Where
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.axis import draw_axis
from ddpdoctor.report.html.pictures.choose import choose_picture
from ddpdoctor.report.html.pictures.failure import draw_failure
from ddpdoctor.report.html.pictures.lanes import draw_lanes
from ddpdoctor.report.html.pictures.mesh import view_mesh
from ddpdoctor.report.html.pictures.replicas import (
    draw_batches,
    draw_orders,
    draw_replicas,
    draw_tensors,
)
from ddpdoctor.report.html.pictures.states import draw_states
from ddpdoctor.report.html.sources import view_sources
from ddpdoctor.report.model import Report
from tests.report.samples import sample_healthy, sample_problems
from tests.report.test_standstill_view import make_call, make_evidence

SECOND = 1_000_000_000
HOSTILE = "<script>\u202e</svg>"


def stand(rank: int, calls: Sequence[tuple[str, int]], *, waits: bool = True, gone: bool = False) -> Stand:
    """A rank that made some calls; the last one has not returned where it waits."""
    made = [
        make_call(op, number, 10 + number, size=4, age=9.0 - place, open_=waits and place == len(calls) - 1)
        for place, (op, number) in enumerate(calls)
    ]
    frames = (Frame("train.py", 40, "load", "time.sleep(9)"),)
    return Stand(
        rank,
        call=made[-1] if waits else None,
        recent=tuple(made),
        frames=frames,
        alive=not gone,
        exit_code=0 if gone else None,
    )


def test_lanes_part_after_the_last_call_that_all_made() -> None:
    shared = [("all_reduce", number) for number in range(1, 6)]
    stands = [stand(0, [*shared, ("all_reduce", 6)]), stand(1, [*shared, ("barrier", 6)])]
    figure = draw_lanes(stands, RankSet([1]), Caps())
    assert figure is not None
    before, _, after = figure.drawing.partition("ranks diverge here")
    assert 'class="parting"' in before
    assert figure.drawing.count(">all_reduce #5<") == 2
    assert "all_reduce #2<" not in figure.drawing  # zoomed to the last steps
    assert after == "</text></svg>"
    assert figure.drawing.count("box b-waits") == 1
    assert figure.drawing.count("box b-bad") == 1
    assert figure.small is not None
    assert "all_reduce #5<" not in figure.small


def test_lanes_of_ranks_in_one_call_do_not_part() -> None:
    calls = [("all_reduce", 1), ("all_reduce", 2)]
    figure = draw_lanes([stand(0, calls), stand(1, calls)], RankSet(), Caps())
    assert figure is not None
    assert "diverge" not in figure.drawing
    assert figure.drawing.count("box b-waits") == 2


def test_a_lane_shows_a_rank_outside_of_calls_and_one_that_is_gone() -> None:
    stands = [
        stand(0, [("all_reduce", 1), ("all_reduce", 2)]),
        stand(1, [("all_reduce", 1)], waits=False),
        stand(2, [("all_reduce", 1)], waits=False, gone=True),
    ]
    figure = draw_lanes(stands, RankSet([1]), Caps())
    assert figure is not None
    assert ">load<" in figure.drawing
    assert ">exit code 0<" in figure.drawing
    assert [key.words for key in figure.keys] == [
        "root-cause rank",
        "returned",
        "blocked in this call",
        "process has exited",
    ]


def test_long_names_are_cut_and_hostile_ones_escaped() -> None:
    (_, look) = make_evidence(2, source=HOSTILE).standstills
    name = HOSTILE + "x" * 300
    call = replace(look.stands[0].recent[0], op=name, frames=(Frame(name, 3, name, name),))
    figure = draw_lanes([replace(look.stands[0], call=call, recent=(call,))], RankSet(), Caps())
    assert figure is not None
    for drawing in (figure.drawing, figure.small or ""):
        assert "<script>" not in drawing
        assert "\u202e" not in drawing
        longest = max(len(part.partition("</text>")[0]) for part in drawing.split("<text")[1:])
        assert longest < 250


@pytest.mark.parametrize(("size", "lanes"), [(3, 3), (16, 16), (64, 2), (16_384, 2)])
def test_many_ranks_are_few_lanes_and_a_square_each(size: int, lanes: int) -> None:
    shared = [("all_reduce", 1)]
    stands = [stand(rank, [*shared, ("barrier" if rank == 1 else "all_reduce", 2)]) for rank in range(size)]
    figure = draw_lanes(stands, RankSet([1]), Caps())
    states = draw_states(stands, RankSet([1]), size)
    assert figure is not None
    assert figure.drawing.count('class="lane-back"') == lanes
    assert states.drawing.count("<rect") == (size if size <= 256 else 16_384 // 128 + 2)
    assert states.drawing.count("b-bad") == 1
    assert len(states.drawing) < 100_000


def test_states_show_ranks_that_were_not_seen() -> None:
    states = draw_states([stand(0, [("all_reduce", 1)])], RankSet(), 3)
    assert [key.words for key in states.keys] == ["1 blocked in a collective", "2 not sampled"]


def make_process(
    rank: int, end: float, *, code: int | None = None, signal: int | None = None
) -> ProcessRecord:
    ended = Moment(int(end * SECOND))
    return ProcessRecord(100 + rank, rank=rank, world_size=3, ended=ended, exit_code=code, signal=signal)


def make_crash() -> Evidence:
    def raised(rank: int, at: float, kind: str, message: str) -> ExceptionRecord:
        return ExceptionRecord(100 + rank, kind, message, rank=rank, at=Moment(int(at * SECOND)))

    return Evidence(
        processes=(
            make_process(0, 13.0, signal=15),
            make_process(1, 12.0, code=1),
            make_process(2, 13.0, signal=15),
        ),
        exceptions=(
            raised(
                0, 10.5, "RuntimeError", "[/gloo/tcp/pair.cc:553] Connection closed by peer. Typically so."
            ),
            raised(1, 10.0, "KeyError", HOSTILE),
        ),
    )


def test_a_crash_shows_who_failed_first_and_what_followed() -> None:
    figure = draw_failure(make_crash(), RankSet([1]), RankSet([0, 2]), Caps())
    assert figure is not None
    text = figure.drawing
    assert text.index(">rank 1<") < text.index(">rank 0<") < text.index(">rank 2<")
    assert "+500 ms RuntimeError: Connection closed by peer · +3 s SIGTERM" in text
    assert "pair.cc" not in text
    assert "<script>" not in text
    assert draw_failure(make_crash(), RankSet(), RankSet(), Caps()) is None


def test_a_death_that_was_noticed_late_is_not_drawn_after_what_it_caused() -> None:
    crash = make_crash()
    killed = replace(
        crash,
        processes=(
            make_process(0, 13.0, signal=15),
            make_process(1, 12.0, signal=9),
            make_process(2, 13.0, signal=15),
        ),
        exceptions=crash.exceptions[:1],
    )
    figure = draw_failure(killed, RankSet([1]), RankSet([0, 2]), Caps())
    assert figure is not None
    assert "0 s SIGKILL (noticed 1.5 s later)" in figure.drawing
    assert "-1.5 s" not in figure.drawing


def make_training(looks: Sequence[StepLook], **parts: object) -> Evidence:
    ranks = RankSet.span(4)
    setup = OptimizerSetup(1, "SGD", ranks, **{k: v for k, v in parts.items() if k == "peers"})  # type: ignore[arg-type]
    rest = {k: v for k, v in parts.items() if k != "peers"}
    return Evidence(training=(Training(ranks=ranks, steps=tuple(looks), optimizers=(setup,), **rest),))  # type: ignore[arg-type]


def look(step: int, *sets: Sequence[int], norms: Sequence[float] = ()) -> StepLook:
    values = tuple(Share(f"d{number}", RankSet(ranks)) for number, ranks in enumerate(sets))
    tensors = (
        (
            TensorLook(
                "fc.weight",
                values=tuple(replace(s, norm=n) for s, n in zip(values, norms, strict=True)),
            ),
        )
        if norms
        else ()
    )
    return StepLook(1, step, values=values, tensors=tensors)


def test_replicas_that_diverge_are_colored_by_how_much() -> None:
    looks = [look(1, range(4)), look(2, [0, 1, 2], [3], norms=(1.0, 1.001)), look(4, [0, 1, 2], [3])]
    (figure,) = draw_replicas(make_training(looks), Caps())
    assert figure.drawing.count('class="same"') == 4 + 3 + 3
    assert figure.drawing.count('class="h1"') == 1
    assert "rank 3, step 2: differs, norm by 0.1 %" in figure.drawing
    assert figure.drawing.count('class="h3"') == 1  # by an unknown amount
    tensors = draw_tensors(make_training(looks), Caps())
    assert tensors is not None
    assert "fc.weight, step 2: differs, norm by 0.1 %" in tensors.drawing


def test_shards_are_compared_only_with_their_replicas() -> None:
    looks = [look(1, [0, 2], [1, 3]), look(2, [0], [2], [1, 3])]
    pairs = (RankSet([0, 2]), RankSet([1, 3]))
    layout = Layout((Axis("fully_shard", "dp", "data", pairs),))
    (figure,) = draw_replicas(make_training(looks, peers=pairs, layout=layout), Caps())
    assert figure.drawing.count('class="same"') == 4 + 3
    assert figure.drawing.count('class="h3"') == 1
    assert "rank 2, step 2: differs" in figure.drawing


def test_batches_of_tensor_parallel_peers_may_be_the_same() -> None:
    batch = BatchLook(1, "train.py:9", 1, 1, (Share("a", RankSet([0, 1])), Share("b", RankSet([2, 3]))))
    layout = Layout((Axis("DistributedDataParallel", "dp", "data", (RankSet([0, 2]), RankSet([1, 3]))),))
    figure = draw_batches(make_training([], batches=(batch,), layout=layout), Caps())
    assert figure is not None
    assert figure.drawing.count('class="same"') == 4
    alone = draw_batches(make_training([], batches=(batch,)), Caps())
    assert alone is not None
    assert alone.drawing.count('class="h3"') == 4
    assert "the same as on 1" in alone.drawing


def test_an_order_that_comes_again_stands_out() -> None:
    epochs = tuple(EpochLook("train.py:9", n, RankSet.span(2), "same", 8) for n in (1, 2, 3))
    figure = draw_orders(make_training([], epochs=epochs), Caps())
    assert figure is not None
    assert figure.drawing.count('class="h3"') == 4
    assert draw_orders(make_training([], epochs=epochs[:1]), Caps()) is None


def test_thousands_of_ranks_are_blocks_that_show_their_worst() -> None:
    ranks = range(4096)
    training = Training(ranks=RankSet(ranks), steps=(look(1, [r for r in ranks if r != 777], [777]),))
    setup = OptimizerSetup(1, "SGD", RankSet(ranks))
    caps = Caps()
    (figure,) = draw_replicas(Evidence(training=(replace(training, optimizers=(setup,)),)), caps)
    assert figure.drawing.count('class="h3"') == 1
    assert "4,096 ranks in blocks of up to 64" in caps.notes[0]


def test_a_mesh_places_each_rank_by_its_coordinates() -> None:
    rows, columns = (RankSet([0, 1]), RankSet([2, 3])), (RankSet([0, 2]), RankSet([1, 3]))
    axes = (Axis("fully_shard", "dp", "data", columns), Axis("parallelize_module", "tp", "tensor", rows))
    view = view_mesh(make_training([], layout=Layout(axes)), RankSet([2]), Caps())
    assert view is not None
    assert view.summary == "4 ranks as dp 2 × tp 2"
    assert view.columns == ("tp 0", "tp 1")
    assert view.rows == (("dp 0", (("0", False), ("1", False))), ("dp 1", (("2", True), ("3", False))))
    assert view_mesh(make_training([], layout=Layout(axes[:1])), RankSet(), Caps()) is None


def make_incident() -> Report:
    def event(at: float, kind: str, host: str, text: str) -> TimedEvent:
        return TimedEvent(int(at * SECOND), kind, text, host, RankSet([1]), file="a.log", line=3)

    events = (
        event(1000, "cause", "node-b", "Xid 79"),
        event(1000, "progress", "node-b", "last output"),
        event(1600, "consequence", "node-a", HOSTILE),
    )
    end = JobEnd(None, timeline=events)
    return replace(sample_problems(), command="analyze", evidence=Evidence(job=(end,)))


def test_an_incident_is_one_axis_with_a_lane_for_each_host() -> None:
    view = draw_axis(make_incident(), Caps())
    assert view is not None
    assert view.figure.drawing.count('class="lane-back"') == 2
    assert [(number, css, row.gap) for number, css, row in view.events] == [
        (1, "b-bad", "0 s"),
        (2, "b-past", "0 s"),
        (3, "b-waits", "+10 min 00 s"),
    ]
    assert "<script>" not in view.figure.drawing
    circles = [part.split('"')[1:4:2] for part in view.figure.drawing.split("<circle ")[1:]]
    assert circles[0][0] == circles[1][0]  # at one time
    assert circles[0][1] != circles[1][1]  # none covers the other


def test_each_kind_of_verdict_has_its_picture() -> None:
    problems = sample_problems()
    cause = problems.findings[0]
    rows = tuple(
        replace(row, family=family, codes=(code,), status="fail")
        for row, family, code in zip(
            problems.checks, ("hangs", "training", "crash"), ("COL002", "NUM001", "ERR001"), strict=False
        )
    )

    def kind(code: str, evidence: Evidence, job_code: int = 0) -> str | None:
        job = replace(problems.job, exit_code=job_code, stopped_by=None) if problems.job else None
        finding = replace(cause, code=code, ranks=RankSet([1]), severity="error")
        report = replace(
            problems, command="run", findings=(finding,), evidence=evidence, checks=rows, job=job
        )
        return choose_picture(report, Caps()).kind

    assert kind("COL002", make_evidence(4), 1) == "hang"
    assert kind("NUM001", make_training([look(1, range(4))])) == "silent"
    assert kind("ERR001", make_crash(), 1) == "crash"
    assert kind("ERR001", Evidence(), 1) is None
    assert choose_picture(make_incident(), Caps()).kind == "incident"
    assert choose_picture(sample_healthy(), Caps()).kind == "check"


def test_source_has_five_lines_and_guard_and_call_in_one_frame(tmp_path: Path) -> None:
    lines = [f"line_{number}()" for number in range(1, 41)]
    lines[19], lines[22] = "if rank == 0:", "    dist.barrier()"
    (tmp_path / "train.py").write_text("\n".join(lines))
    read = SourceReader(str(tmp_path))
    places = (
        Where(RankSet([0]), "culprit", "train.py", 23, "main", "dist.barrier()"),
        Where(RankSet([0]), "condition", "train.py", 20, "if", "if rank == 0:"),
        Where(RankSet([0]), "caller", "train.py", 40, "<module>", "line_40()"),
    )
    (frame,) = view_sources(places, 4, read, Caps())
    assert [line.number for line in frame.lines] == [18, 19, 20, 21, 22, 23, 24, 25, 40]
    assert [line.tone for line in frame.lines if line.tone] == ["condition", "culprit", "caller"]
    assert frame.lines[5].text == "    dist.barrier()"
    assert frame.lines[-1].gap
    changed = (replace(places[0], source="dist.all_reduce(x)"), *places[1:])
    (frame,) = view_sources(changed, 4, read, Caps())
    assert [line.number for line in frame.lines] == [20, 23, 40]  # the file is another one by now


def test_only_python_below_the_directory_is_read_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_text('x = 1\npassword = "hunter2-Zx9"\n')
    (tmp_path / "out.py").write_text("x = 1\n")
    (tmp_path / "in" / "a.txt").write_text("x = 1\n")
    (tmp_path / "in" / "link.py").symlink_to(tmp_path / "out.py")
    read = SourceReader(str(tmp_path / "in"))
    lines = read("a.py")
    assert lines is not None
    assert lines[0] == "x = 1"
    assert "hunter2" not in "".join(lines)
    for name in ("../out.py", str(tmp_path / "out.py"), "a.txt", "link.py", "no.py", "in\0.py", "."):
        assert read(name) is None


def test_no_headline_is_said_twice() -> None:
    from ddpdoctor.report.html.view import build_view
    from ddpdoctor.report.registry import RenderOptions

    report = sample_problems()
    said: Finding = report.findings[0]
    report = replace(report, verdict=replace(report.verdict, headline=said.message))
    view = build_view(report, RenderOptions())
    assert view.findings[0].message == ""
    assert view.findings[1].message


def test_a_look_that_joined_several_nodes_is_drawn_whole() -> None:
    looks = [
        Standstill(Moment(1, 1), 9.0, 2.0, (stand(rank, [("all_reduce", 1)]),), 2, 0.7, "proved", node=rank)
        for rank in range(2)
    ]
    report = replace(sample_problems(), command="attach", evidence=Evidence(standstills=tuple(looks)))
    figures = choose_picture(report, Caps()).figures
    assert [figure.title for figure in figures] == ["Last calls of the ranks", "Rank states"]
    assert figures[0].drawing.count('class="lane-back"') == 2
