"""The page of a job that stood still."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.native import NativeFrame
from ddpdoctor.evidence.standstill import Call, Stand, Standstill
from ddpdoctor.report.html.call_lanes import COLUMNS_SHOWN, LANES_SHOWN
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.stacks import FORKS_SHOWN
from ddpdoctor.report.html.standstill import view_standstill

HOSTILE = "<script>alert(1)</script>"


def make_call(op: str, ordinal: int, line: int, *, size: int, age: float, open_: bool = False) -> Call:
    return Call(
        op=op,
        group="0",
        members=RankSet.span(size),
        ordinal=ordinal,
        shape=(4,),
        dtype="float32",
        returned=not open_,
        age_s=age,
        took_s=None if open_ else 0.01,
        frames=(Frame("train.py", line, "step", f"line {line}"),),
    )


def make_evidence(size: int, odd: int | None = 1, source: str = "dist.barrier()") -> Evidence:
    """Ranks that made five equal calls, then wait in the sixth; the odd one waits in another."""
    stands = []
    for rank in range(size):
        calls = [
            make_call("all_reduce", number, 10, size=size, age=8.0 - number, open_=False)
            for number in range(1, 6)
        ]
        last = (
            make_call("barrier", 6, 30, size=size, age=2.0, open_=True)
            if rank == odd
            else make_call("all_reduce", 6, 10, size=size, age=2.0, open_=True)
        )
        frames = (Frame("train.py", 10, "step", source),)
        stands.append(Stand(rank, 100 + rank, call=last, recent=(*calls, last), still_s=2.0, frames=frames))
    looks = (
        Standstill(Moment(1, 1), 12.0, 2.0, tuple(stands), size, 0.7, "suspected"),
        Standstill(Moment(2, 2), 14.0, 4.0, tuple(stands), size, 0.7, "proved", stopped=True),
    )
    return Evidence(launch=Launch(command="run", world_size=size), standstills=looks)


def test_a_job_that_got_on_has_no_such_section() -> None:
    assert view_standstill(Evidence(), Caps()) is None


def test_ranks_are_folded_by_where_they_stand() -> None:
    view = view_standstill(make_evidence(4), Caps())
    assert view is not None
    assert [(each.ranks, each.doing, each.place) for each in view.classes] == [
        ("ranks 0, 2-3", "in all_reduce #6", "train.py:10"),
        ("rank 1", "in barrier #6", "train.py:30"),
    ]


def test_the_first_difference_is_marked() -> None:
    view = view_standstill(make_evidence(4), Caps())
    assert view is not None
    assert view.table is not None
    assert [row.ordinal for row in view.table.rows if row.first] == ["#6"]
    assert view.table.columns == ("ranks 0, 2-3", "rank 1")
    assert [cell[2] for cell in view.table.rows[-1].cells] == ["same", "odd"]


def test_a_rank_that_made_fewer_calls_has_an_empty_cell() -> None:
    evidence = make_evidence(2, odd=None)
    (_, look) = evidence.standstills
    short = Stand(1, 101, recent=look.stands[1].recent[:-1], still_s=2.0, frames=look.stands[1].frames)
    changed = Standstill(look.at, 14.0, 4.0, (look.stands[0], short), 2, 0.7, "confirmed")
    view = view_standstill(Evidence(standstills=(changed,)), Caps())
    assert view is not None
    assert view.table is not None
    assert [cell[2] for cell in view.table.rows[-1].cells] == ["same", "none"]


def test_the_ladder_says_what_was_known_when() -> None:
    view = view_standstill(make_evidence(2), Caps())
    assert view is not None
    assert [row[1] for row in view.ladder] == [
        "suspected",
        "deadlock proven: none of these ranks can make progress",
    ]


def test_a_thousand_ranks_are_a_few_lanes() -> None:
    caps = Caps()
    view = view_standstill(make_evidence(1024, odd=517), caps)
    assert view is not None
    assert view.timeline.drawing is not None
    assert view.timeline.drawing.count('class="lane-name"') == 2
    assert len(view.timeline.drawing) < 100_000
    assert view.classes[1].ranks == "rank 517"


def test_sixteen_ranks_have_a_lane_each() -> None:
    view = view_standstill(make_evidence(LANES_SHOWN), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert view.timeline.drawing.count('class="lane-name"') == LANES_SHOWN


def test_hostile_text_stays_text() -> None:
    evidence = make_evidence(2, source=HOSTILE)
    (_, look) = evidence.standstills
    call = Call(
        op=HOSTILE,
        group="0",
        ordinal=1,
        returned=True,
        age_s=1.0,
        took_s=0.5,
        frames=(Frame(HOSTILE, 1, HOSTILE, HOSTILE),),
    )
    stand = Stand(0, 1, recent=(call,), still_s=1.0, frames=(Frame(HOSTILE, 1, HOSTILE, HOSTILE),))
    view = view_standstill(Evidence(standstills=(Standstill(look.at, 1.0, 1.0, (stand,)),)), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert "<script" not in view.timeline.drawing


def test_the_first_difference_counts_ranks_whose_column_is_not_shown() -> None:
    """Seven sequences, six columns: the seventh parts earlier than the others do."""
    size = COLUMNS_SHOWN + 1
    stands = []
    for rank in range(size):
        lines = [10, 11 if rank == size - 1 else 10, 20 + rank]
        calls = [make_call("all_reduce", n, line, size=size, age=9.0 - n) for n, line in enumerate(lines, 1)]
        calls[-1] = replace(calls[-1], returned=False, took_s=None)
        stands.append(Stand(rank, rank, call=calls[-1], recent=tuple(calls), still_s=2.0))
    look = Standstill(Moment(1, 1), 12.0, 2.0, tuple(stands), size, 0.7, "proved")
    view = view_standstill(Evidence(standstills=(look,)), Caps())
    assert view is not None
    assert view.table is not None
    assert len(view.table.columns) == COLUMNS_SHOWN
    assert [row.ordinal for row in view.table.rows if row.first] == ["#2"]


def test_the_stacks_are_one_tree_with_source_lines() -> None:
    evidence = make_evidence(4, odd=None)
    (_, look) = evidence.standstills
    main = Frame("train.py", 40, "main", "step(batch)")
    read = (Frame("data.py", 61, "read", "sock.recv(9)"), main)
    inside = (NativeFrame("recv", "libc.so.6"), NativeFrame("decode", "libfoo.so"))
    stands = [replace(stand, frames=(*stand.frames, main)) for stand in look.stands]
    stands[2] = replace(stands[2], call=None, frames=read, native=inside)
    view = view_standstill(Evidence(standstills=(replace(look, stands=tuple(stands)),)), Caps())
    assert view is not None
    assert [(row.here, row.missing, row.depth, row.function, row.place, row.source) for row in view.tree] == [
        ("ranks 0-3", "", 0, "main", "train.py:40", "step(batch)"),
        ("ranks 0-1, 3", "rank 2", 1, "step", "train.py:10", "dist.barrier()"),
        ("rank 2", "ranks 0-1, 3", 1, "read", "data.py:61", "sock.recv(9)"),
        ("", "", 1, "decode", "libfoo.so", None),
        ("", "", 1, "recv", "libc.so.6", None),
    ]


def test_a_tree_of_many_places_is_cut_and_says_so() -> None:
    (_, look) = make_evidence(300, odd=None).standstills
    stands = [replace(stand, frames=(Frame("a.py", stand.rank, "f", "x"),)) for stand in look.stands]
    view = view_standstill(Evidence(standstills=(replace(look, stands=tuple(stands)),)), Caps())
    assert view is not None
    assert len(view.tree) == FORKS_SHOWN + 1
    assert (view.tree[-1].function, view.tree[-1].here) == ("… 294 more places", "ranks 6-299")


def test_a_call_that_has_not_returned_is_red_though_it_is_kept_with_fewer_frames() -> None:
    (_, look) = make_evidence(2).standstills
    stands = [
        replace(stand, call=replace(stand.call, frames=(*stand.call.frames, Frame("train.py", 40, "main"))))
        for stand in look.stands
        if stand.call is not None
    ]
    view = view_standstill(Evidence(standstills=(replace(look, stands=tuple(stands)),)), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert view.timeline.drawing.count('class="op-open"') == 2


def test_a_lane_of_many_ranks_is_named_by_how_many_they_are() -> None:
    view = view_standstill(make_evidence(1024, odd=517), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert ">1,023 ranks<" in view.timeline.drawing
    assert ">rank 517<" in view.timeline.drawing
