"""What tests of lint's findings share: scripts in, findings out."""

from __future__ import annotations

import textwrap

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.judge import Finding, Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.gather import judge_scripts
from ddpdoctor.source.reading import parse_script

REGISTRY = Registry()
ddpdoctor_checks.register(REGISTRY)
HEAD = """\
import argparse, os, shutil, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler
"""


def lint(text: str, head: str = HEAD, **others: str) -> list[Finding]:
    """Return the findings of a script, read together with others."""
    files = {"train.py": head + textwrap.dedent(text)}
    files |= {f"{name}.py": HEAD + textwrap.dedent(other) for name, other in others.items()}
    rows = judge_scripts([parse_script(source.encode(), name) for name, source in files.items()])
    evidence = Evidence(launch=Launch("lint", nproc=0, world_size=0), sources=rows)
    states, findings = run_checks(REGISTRY.checks_of("lint"), evidence)
    assert {state.status for state in states} <= {"pass", "fail"}
    return findings


def lines_of(findings: list[Finding], code: str) -> set[int | None]:
    """Return the lines of the culprits of one code."""
    return {each.where[0].line for each in findings if each.code == code}


def find_marked(text: str, head: str = HEAD) -> set[int]:
    """Return the lines that a script marks with ``# here``."""
    whole = head + textwrap.dedent(text)
    return {number for number, line in enumerate(whole.splitlines(), 1) if "# here" in line}
