"""What a mistake of ddpdoctor's own costs: checks that could not look, and never a finding about the machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddpdoctor.evidence import STAGES, Absent, Evidence

SHOWN_BY = {
    "smoke": ("smoke",),
    "rendezvous": ("rendezvous",),
    "backends": ("backends",),
    "collectives": ("collectives", "initialisations"),
    "ddp": ("experiments", "model"),
    "bandwidth": ("bandwidth", "pairs", "baselines"),
    "strategies": ("strategies",),
}
"""Kinds of evidence that each stage brings."""
OF_ALL = ("stages", "errors", "exits")
"""Kinds that tell how the ranks ended."""


def describe_defects(evidence: Evidence) -> str | None:
    """Return one sentence on what of ours failed; None where nothing did."""
    if not evidence.defects:
        return None
    first = evidence.defects[0]
    more = len(evidence.defects) - 1
    others = f", and {more} more like it" if more else ""
    return f"ddpdoctor itself failed in {first.who}: {first.text} ({first.file}:{first.line}){others}"


def set_aside(evidence: Evidence) -> Evidence:
    """Return the evidence to judge: without what a mistake of ours, in a stage or before it, may have brought about."""
    why = describe_defects(evidence)
    if why is None:
        return evidence
    first = min(STAGES.index(each.stage) for each in evidence.defects)
    gone = [kind for stage in STAGES[first:] for kind in SHOWN_BY.get(stage, ())]
    changes: dict[str, Any] = {kind: () for kind in (*OF_ALL, *gone)}
    absent = {**evidence.absent, **{kind: Absent(why) for kind in changes}}
    return dataclasses.replace(evidence, absent=absent, **changes)
