"""Which picture stands first: the one that shows the kind of the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.standstill import last_looks
from ddpdoctor.judge.finding import Finding
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.pictures.axis import AxisView, draw_axis
from ddpdoctor.report.html.pictures.failure import draw_failure
from ddpdoctor.report.html.pictures.lanes import draw_lanes
from ddpdoctor.report.html.pictures.marks import Figure
from ddpdoctor.report.html.pictures.mesh import MeshView, view_mesh
from ddpdoctor.report.html.pictures.replicas import draw_batches, draw_orders, draw_replicas, draw_tensors
from ddpdoctor.report.html.pictures.states import draw_states
from ddpdoctor.report.model import Report

HANG, CRASH, SILENT, SLOW, CHECK, INCIDENT = "hang", "crash", "silent", "slow", "check", "incident"
SLOW_CODES, DATA_CODES = "PRF", "DAT"
"""Beginnings of codes."""


@dataclass(frozen=True, slots=True)
class PictureView:
    """What stands first."""

    kind: str | None
    """One of the kinds above; slow and check are drawn from the sections of that name. None: no picture fits."""
    figures: tuple[Figure, ...] = ()
    folded: Figure | None = None
    """On demand."""
    axis: AxisView | None = None
    mesh: MeshView | None = None


def choose_picture(report: Report, caps: Caps) -> PictureView:
    """Return the picture of a report's verdict."""
    evidence = report.evidence
    active = [each for each in report.findings if each.state == "active" and each.severity != "info"]
    cause = active[0] if active else None
    blamed = cause.ranks if cause is not None else RankSet()
    mesh = view_mesh(evidence, blamed, caps)
    for kind in _order(report, cause):
        view = _draw(kind, report, cause, blamed, mesh, caps)
        if view is not None:
            return view
    return PictureView(None, mesh=mesh)


def _order(report: Report, cause: Finding | None) -> tuple[str, ...]:
    """Return the kinds that may show a verdict, the best one first."""
    evidence = report.evidence
    if report.command in ("check", "lint"):
        return (CHECK,)
    if any(end.timeline for end in evidence.job):
        return INCIDENT, HANG, CRASH
    if cause is None:
        return (SLOW,) if not evidence.standstills else (HANG, SLOW)
    if _is_hang(report, cause):
        return (HANG,)
    if cause.code.startswith(SLOW_CODES):
        return SLOW, SILENT
    trained = {code for row in report.checks if row.family == "training" for code in row.codes}
    if cause.code in trained and not (report.job is not None and report.job.exit_code):
        return SILENT, SLOW
    return CRASH, HANG, SILENT


def _is_hang(report: Report, cause: Finding) -> bool:
    """Whether the verdict is on ranks that do not get on."""
    if not report.evidence.standstills:
        return False
    found = {
        code for row in report.checks if row.family == "hangs" and row.status == "fail" for code in row.codes
    }
    stopped = report.job is not None and report.job.stopped_by is not None
    return stopped or cause.code in found


def _draw(
    kind: str, report: Report, cause: Finding | None, blamed: RankSet, mesh: MeshView | None, caps: Caps
) -> PictureView | None:
    """Return the view of one kind; None where there is nothing to draw it from."""
    evidence = report.evidence
    figures: tuple[Figure, ...] = ()
    folded = axis = None
    if kind == HANG:
        figures = _draw_hang(evidence, blamed, caps)
    elif kind == CRASH:
        affected = cause.victims if cause is not None else RankSet()
        drawn = draw_failure(evidence, blamed, affected, caps)
        figures = () if drawn is None else (drawn,)
    elif kind == SILENT:
        figures, folded = _draw_silent(evidence, cause, caps), draw_tensors(evidence, caps)
    elif kind == INCIDENT:
        axis = draw_axis(report, caps)
    elif kind == SLOW and any(node.timing.ranks for node in evidence.training):
        return PictureView(SLOW, mesh=mesh)
    elif kind == CHECK:
        return PictureView(CHECK, mesh=mesh)
    return PictureView(kind, figures, folded, axis, mesh) if figures or axis else None


def _draw_hang(evidence: Evidence, blamed: RankSet, caps: Caps) -> tuple[Figure, ...]:
    look = last_looks(evidence.standstills)
    if look is None:
        return ()
    lanes = draw_lanes(look.stands, blamed, caps)
    states = draw_states(look.stands, blamed, look.world_size or len(look.stands))
    return (states,) if lanes is None else (lanes, states)


def _draw_silent(evidence: Evidence, cause: Finding | None, caps: Caps) -> tuple[Figure, ...]:
    """Draw batches and orders for a verdict on data; else replicas, or batches and orders where there are none."""
    about_data = cause is not None and cause.code.startswith(DATA_CODES)
    data = [each for each in (draw_batches(evidence, caps), draw_orders(evidence, caps)) if each is not None]
    if about_data and data:
        return tuple(data)
    return draw_replicas(evidence, caps) or tuple(data)
