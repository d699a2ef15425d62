"""The picture of calls that Flight Recorders held."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.collectives import COMPLETED, RETIRED, STARTED, CallTable, RankCalls, RecordedCall
from ddpdoctor.evidence.columns import Numbers
from ddpdoctor.evidence.job import Moment
from ddpdoctor.evidence.standstill import Standstill
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.recorded import view_recorded

SECOND = 10**9
HOSTILE = "<script>alert(1)</script>"


def record(size: int, late: int = 1, rows: int = 6, file: str = "train.py") -> Evidence:
    """All ranks make the same calls, 0.1 s apart; one never comes to the last."""
    table = CallTable()
    group = table.group("0", "default_pg", RankSet.span(size))
    torch = Frame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
    call = table.call(
        RecordedCall("all_reduce", group, ((4,),), ((4,),), ("float32",), ("float32",), table.stack((torch, Frame(file, 88, "step"))))
    )  # fmt: skip
    ranks = []
    for rank in range(size):
        count = rows - (rank == late)
        states = [COMPLETED + RETIRED] * (rows - 1) + [STARTED] * (rank != late)
        ranks.append(
            RankCalls(
                rank,
                calls=Numbers([call] * count),
                sequences=Numbers(range(1, count + 1)),
                states=Numbers(states),
                begun_ns=Numbers(SECOND * 1000 + n * SECOND // 10 for n in range(count)),
            )
        )
    return Evidence(calls=(table.log(ranks),))


def test_the_call_that_a_rank_never_made_is_marked() -> None:
    view = view_recorded(record(4), Caps())
    assert view is not None
    assert view.table is not None
    assert view.table.columns == ("ranks 0, 2-3", "rank 1")
    assert [row.ordinal for row in view.table.rows if row.first] == ["#6"]
    assert view.table.rows[-1].cells == (("all_reduce [4] float32", "train.py:88", "same"), ("", "", "none"))


def test_who_waits_has_a_red_bar() -> None:
    view = view_recorded(record(4), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert view.timeline.drawing.count('class="op-open"') == 3
    assert view.timeline.span == "500 ms"


def test_a_thousand_ranks_are_two_lanes_of_a_small_page() -> None:
    view = view_recorded(record(1024, late=517, rows=80), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert view.timeline.drawing.count('class="lane-name"') == 2
    assert len(view.timeline.drawing) < 100_000


def test_where_the_ranks_were_looked_at_the_look_is_shown() -> None:
    evidence = record(2)
    looked = Evidence(calls=evidence.calls, standstills=(Standstill(Moment(0), 1.0, 1.0, ()),))
    assert view_recorded(looked, Caps()) is None
    assert view_recorded(Evidence(), Caps()) is None
    assert view_recorded(record(1), Caps()) is None


def test_hostile_names_stay_text() -> None:
    view = view_recorded(record(2, file=HOSTILE), Caps())
    assert view is not None
    assert view.timeline.drawing is not None
    assert "<script" not in view.timeline.drawing
