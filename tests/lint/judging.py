"""What tests of lint's findings share: scripts in, findings out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge import QUESTION, Finding, Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.source.rules import FAILED

REGISTRY = Registry()
ddpdoctor_checks.register(REGISTRY)
RULES = REGISTRY.lint_rules
EXAMPLES = {
    code: (textwrap.dedent(sections["Wrong"]) + "\n", textwrap.dedent(sections["Right"]) + "\n")
    for code, page in REGISTRY.pages.items()
    if "Wrong" in (sections := page.sections())
}
"""Code -> the wrong and the right program of its page."""
HEAD = """\
import argparse, os, shutil, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler
"""


def read(files: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """Return what is read in the files of one program, by their names."""
    rows = judge_scripts([parse_script(text.encode(), name) for name, text in files.items()], RULES)
    assert [part for row in rows for part in row.skipped if FAILED in part] == []
    return rows


def judge(sources: Sequence[SourceFile], *, questions: bool = False) -> list[Finding]:
    """Return the findings of what was read, or the questions."""
    evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0), sources=tuple(sources))
    states, findings = run_checks(REGISTRY.checks_of("lint"), evidence)
    assert {state.status for state in states} <= {"pass", "fail"}
    return [each for each in findings if (each.role == QUESTION) is questions]


def ask(text: str) -> list[Finding]:
    """Return the questions about a script."""
    return judge(read({"train.py": HEAD + textwrap.dedent(text)}), questions=True)


def lint(text: str, head: str = HEAD, **others: str) -> list[Finding]:
    """Return the findings of a script, read together with others."""
    files = {"train.py": head + textwrap.dedent(text)}
    return judge(
        read(files | {f"{name}.py": HEAD + textwrap.dedent(other) for name, other in others.items()})
    )


def assert_found(text: str, code: str, severity: str) -> None:
    """Assert that all that is found in a script is one mistake, at the lines that it marks, with a correction."""
    findings = lint(text)
    assert {(each.code, each.severity) for each in findings} == {(code, severity)}
    assert lines_of(findings, code) == find_marked(text)
    assert all(each.fix for each in findings)


def lines_of(findings: list[Finding], code: str) -> set[int | None]:
    """Return the lines of the culprits of one code."""
    return {each.where[0].line for each in findings if each.code == code}


def find_marked(text: str, head: str = HEAD) -> set[int]:
    """Return the lines that a script marks with ``# here``."""
    whole = head + textwrap.dedent(text)
    return {number for number, line in enumerate(whole.splitlines(), 1) if "# here" in line}
