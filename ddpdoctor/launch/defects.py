"""Mistakes of ddpdoctor's own, told from what torch, the machine or the user's model raise.

A mistake of ours is an exception of the kinds by which Python says that a program is wrong, raised by a line of ours:
a name that this torch lacks, an argument that it does not take. What torch raises below a call of ours is not one, nor
is what C++ says in other kinds (RuntimeError).
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback

import ddpdoctor
from ddpdoctor.evidence import Defect, Frame
from ddpdoctor.facts.ownership import OURS, PYTHON, TORCH, Roots, find_owner

PROGRAM = (TypeError, AttributeError, NameError, ImportError, LookupError, AssertionError, ArithmeticError)
_MISCALLED = re.compile(r"\b(\w{1,200})\(\) (?:got an unexpected|got multiple values|missing \d|takes )")
"""How Python says that a call does not fit the function."""


class OwnError(Exception):
    """A mistake of ours ends a stage."""


def find_defect(problem: BaseException) -> Frame | None:
    """Return the place of a mistake of ours; None where an exception is none."""
    if not isinstance(problem, PROGRAM):
        return None
    roots = _find_roots()
    trace = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if find_owner(frame.filename, roots) != PYTHON
    ]
    if not trace:
        return None
    last = trace[-1]
    owner = find_owner(last.filename, roots)
    if (
        owner == TORCH
        and isinstance(problem, AttributeError)
        and last.name == "__getattr__"
        and len(trace) > 1
    ):
        last = trace[-2]
        owner = find_owner(last.filename, roots)
    called = _MISCALLED.search(str(problem)) if isinstance(problem, TypeError) else None
    if owner == TORCH and called is not None and len(trace) > 1:
        # torch decorates many of its functions: its wrapper hands over what we gave.
        last = trace[-2]
        ours = f"{called[1]}(" in (last.line or "")
        owner = find_owner(last.filename, roots) if ours else owner
    return Frame(last.filename, last.lineno or 0, last.name) if owner == OURS else None


def pass_defect(problem: BaseException) -> None:
    """Let a mistake of ours go on as it is; do nothing with another exception.

    Raises:
        BaseException: ``problem`` itself.
    """
    if find_defect(problem) is not None:
        raise problem


def describe_defect(
    problem: BaseException, who: str, stage: str, node: int, rank: int | None = None
) -> Defect | None:
    """Return the evidence of a mistake of ours; None where an exception is none."""
    frame = find_defect(problem)
    if frame is None:
        return None
    home = os.path.dirname(os.path.dirname(ddpdoctor.__file__))
    text = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    return Defect(node, stage, who, text[:1000], os.path.relpath(frame.file, home), frame.line, rank)


def _find_roots() -> Roots:
    import torch

    return Roots(
        python=[sysconfig.get_paths()["stdlib"]],
        torch=[os.path.dirname(torch.__file__)],
        ours=[os.path.dirname(ddpdoctor.__file__)],
    )
