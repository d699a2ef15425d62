"""What docs/ci.md tells people to paste is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ddpdoctor.report import RenderOptions
from ddpdoctor.report.prometheus import PrometheusRenderer
from tests.report.samples import sample_problems
from tests.report.sarif import find_problems

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "ci.md").read_text()
LIMIT_S = 120

TRAIN = """import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(int(sys.argv[2])):
    dist.all_reduce(total)
dist.destroy_process_group()
"""
GUARDED = TRAIN.replace(
    "    dist.all_reduce(total)\n", "    if dist.get_rank() == 0:\n        dist.all_reduce(total)\n"
)


def block(heading: str, language: str) -> str:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a script in it, and the command of this environment on the path as `ddpdoctor`."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "ddpdoctor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ddpdoctor "$@"\n')
    command.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    return tmp_path


def run(
    script: str, project: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=project / "work",
        env={**os.environ, "PATH": path, "DDPDOCTOR_BIN": str(project / "bin"), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def github_step(project: Path, job: str) -> subprocess.CompletedProcess[str]:
    steps = yaml.safe_load(block("GitHub", "yaml"))["jobs"][job]["steps"]
    (script,) = [step["run"] for step in steps if "ddpdoctor " in step.get("run", "")]
    summary = {"GITHUB_STEP_SUMMARY": str(project / "summary.md"), "GITHUB_WORKSPACE": str(project)}
    return run(script, project, summary)


def test_github_lint_annotates_uploads_and_sums_up(project: Path) -> None:
    (project / "work" / "train.py").write_text(GUARDED)
    done = github_step(project, "lint")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^::error file=work/train.py,line=9,col=\d+,title=COL002 ", done.stdout, re.MULTILINE)
    log = (project / "work" / "ddpdoctor.sarif").read_text()
    assert find_problems(log) == []
    assert json.loads(log)["runs"][0]["results"][0]["ruleId"] == "COL002"
    summary = (project / "summary.md").read_text()
    assert summary.startswith("## ddpdoctor ✖ 1 error in 1 file\n")
    assert "**COL002 collective-missing: all_reduce at train.py:9" in summary


def test_github_smoke_run_sums_up_beside_the_job(project: Path) -> None:
    done = github_step(project, "smoke")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "::notice title=ddpdoctor::healthy" in done.stderr
    assert (project / "summary.md").read_text().startswith("## ddpdoctor ✓ healthy")
    assert (project / "work" / "ddpdoctor-runs").is_dir()


@pytest.mark.long
def test_gitlab_job_leaves_its_reports(project: Path) -> None:
    job = yaml.safe_load(block("GitLab", "yaml"))["ddpdoctor"]
    commands = [line for line in job["script"] if line.startswith("ddpdoctor ")]
    done = run("\n".join(commands), project)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in job["artifacts"]["reports"]["junit"]:
        root = ElementTree.parse(project / "work" / name).getroot()
        assert root.get("failures") == root.get("errors") == "0"


def test_slurm_prolog_writes_gauges_and_keeps_a_healthy_node(project: Path) -> None:
    done = run(block("Slurm prolog", "sh"), project, {"TEXTFILES": str(project)})
    assert done.returncode == 0, done.stdout + done.stderr
    text = (project / "ddpdoctor.prom").read_text()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert alerts() - {"ddpdoctor_finding"} <= names
    found = PrometheusRenderer().render(sample_problems(), RenderOptions())
    assert alerts() <= {family.name for family in text_string_to_metric_families(found)}


def alerts() -> set[str]:
    """Metrics that the page would alert on."""
    names = set(re.findall(r"^(?:time\(\) - )?(ddpdoctor_\w+)", PAGE, re.MULTILINE))
    assert len(names) == 3
    return names


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (3, 0)])
def test_slurm_prolog_drains_a_node_for_a_finding_only(project: Path, code: int, expected: int) -> None:
    (project / "bin" / "ddpdoctor").write_text(f"#!/bin/sh\nexit {code}\n")
    script = block("Slurm prolog", "sh")
    (project / "prolog").write_text(script)
    done = run(f"sh {project / 'prolog'}", project, {"TEXTFILES": str(project)})
    assert done.returncode == expected


@pytest.mark.long
def test_init_container_examines_its_pod(project: Path) -> None:
    spec = yaml.safe_load(block("Kubernetes init container", "yaml"))["spec"]
    assert spec["completions"] == spec["parallelism"]
    (container,) = spec["template"]["spec"]["initContainers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["NNODES"] == str(spec["completions"])
    environment |= {"NNODES": "1", "MASTER": "127.0.0.1", "JOB_COMPLETION_INDEX": "0"}
    words: list[Any] = [*container["command"], *container["args"]]
    filled = [re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], word) for word in words]
    done = run(" ".join(filled), project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ddpdoctor ✓ healthy")
