"""``# ddpdoctor: ignore[CODE] reason``: where it counts, and what is said of one that hides nothing."""

from __future__ import annotations

import json

import pytest

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.judge import Finding, Registry
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.judge.suppression import Remark, Suppressor
from ddpdoctor.source.files.reading import Script, parse_script
from ddpdoctor.source.gather import judge_scripts

HEAD = "import torch.distributed as dist\n"
REGISTRY = Registry()
ddpdoctor_checks.register(REGISTRY)
NAMES = {code: page.name for code, page in REGISTRY.pages.items()}


def review(script: Script) -> tuple[list[Finding], tuple[Remark, ...]]:
    evidence = Evidence(
        launch=Launch("lint", nproc=0, world_size=0), sources=judge_scripts([script], REGISTRY.lint_rules)
    )
    suppressor = Suppressor(evidence.sources, NAMES)
    checks = REGISTRY.checks_of("lint")
    _, findings = run_checks(checks, evidence, review=suppressor.review)
    return findings, suppressor.remarks({code for each in checks for code in each.codes})


def read(text: str) -> tuple[list[Finding], tuple[Remark, ...]]:
    return review(parse_script((HEAD + text).encode(), "train.py"))


@pytest.mark.parametrize(
    "text",
    [
        "if dist.get_rank() == 0:\n    dist.barrier()  # ddpdoctor: ignore[COL002] only rank 0 is there\n",
        "if dist.get_rank() == 0:\n    dist.barrier()  # noqa # ddpdoctor:ignore[COL002]: only rank 0 is there\n",
        "if dist.get_rank() == 0:\n    # ddpdoctor: ignore[collective-missing] only rank 0 is there\n\n    dist.barrier()\n",
        "if dist.get_rank() == 0:\n    x = [  # ddpdoctor: ignore[COL006, COL002] only rank 0 is there\n"
        "        1,\n        dist.barrier(),\n    ]\n",
        "if dist.get_rank() == 0:\n    dist.broadcast(\n        x,\n        0,\n"
        "    )  # ddpdoctor: ignore[col002] only rank 0 is there\n",
        "if dist.get_rank() == 0:\n    dist.barrier()\x0c  # ddpdoctor: ignore[COL002] only rank 0 is there\n",
    ],
)
def test_comment_hides_the_finding_of_its_statement(text: str) -> None:
    (finding,), remarks = read(text)
    assert finding.state == "suppressed"
    assert finding.suppression is not None
    assert (finding.suppression.by, finding.suppression.reason) == ("comment", "only rank 0 is there")
    assert [each.text for each in remarks] == (
        ["ignore[COL006] suppresses nothing; remove it"] if "COL006" in text else []
    )
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding


@pytest.mark.parametrize(
    ("comment", "remark"),
    [
        ("ignore[COL002]", "has no reason and is not applied"),
        ("ignore because", "bare `ignore` is not allowed"),
        ("ignore[] because", "bare `ignore` is not allowed"),
        ("ignore[COL020] because", "no such code, is it COL0"),
        ("ignore[COL006] because", "suppresses nothing; remove it"),
    ],
)
def test_comment_that_hides_nothing_is_remarked_on(comment: str, remark: str) -> None:
    (finding,), (said,) = read(f"if dist.get_rank() == 0:\n    dist.barrier()  # ddpdoctor: {comment}\n")
    assert finding.state == "active"
    assert remark in said.text
    assert (said.file, said.line) == ("train.py", 3)


@pytest.mark.parametrize(
    "text",
    [
        "if dist.get_rank() == 0:  # ddpdoctor: ignore[COL002] this is the test, not the call\n    dist.barrier()\n",
        "if dist.get_rank() == 0:\n    x = 1  # ddpdoctor: ignore[COL002] above\n    dist.barrier()\n",
        "# ddpdoctor: ignore[COL002] the whole file\nx = 1\nif dist.get_rank() == 0:\n    dist.barrier()\n",
    ],
)
def test_comment_hides_nothing_of_other_statements(text: str) -> None:
    (finding,), remarks = read(text)
    assert finding.state == "active"
    assert len(remarks) == 1


def test_what_stands_in_a_string_is_no_comment() -> None:
    assert read('x = "# ddpdoctor: ignore[COL002]"\n') == ([], ())


def test_unused_comment_is_not_told_where_nobody_looked() -> None:
    """``--select`` leaves checks out, and one that failed says nothing either."""
    row = judge_scripts(
        [parse_script(b"x = 1  # ddpdoctor: ignore[COL002] why\n", "train.py")], REGISTRY.lint_rules
    )
    assert Suppressor(row, NAMES).remarks({"COL006"}) == ()
    assert len(Suppressor(row, NAMES).remarks({"COL002"})) == 1


def test_comment_in_a_notebook_counts_in_its_cell() -> None:
    cells = [
        HEAD + "if dist.get_rank() == 0:\n    dist.barrier()\n",
        "if dist.get_rank() == 0:\n    dist.barrier()  # ddpdoctor: ignore[COL002] a lesson\n",
        "x = 1\nx = 2  # ddpdoctor: ignore[COL002] old\n",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})
    findings, (remark,) = review(parse_script(text.encode(), "a.ipynb", notebook=True))
    assert [(each.where[0].cell, each.state) for each in findings] == [(1, "active"), (2, "suppressed")]
    assert (remark.cell, remark.line) == (3, 2)
