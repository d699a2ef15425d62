"""``ddpdoctor demo``: the list, one demonstration of each kind, and what is typed wrongly."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.cli.demo import BROKEN, DEMOS, FIXED, INCIDENT, SCRIPTS
from tests.marks import long


def demo(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "demo", *words],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_list_names_each_with_its_code(tmp_path: Path) -> None:
    told = demo(cwd=tmp_path)
    assert told.returncode == 0
    for each in (*DEMOS, INCIDENT):
        assert f"{each.name} [{each.code}]" in told.stdout


def test_scripts_are_all_there_and_differ() -> None:
    for each in DEMOS:
        broken, fixed = ((SCRIPTS / each.name / name).read_text() for name in (BROKEN, FIXED))
        assert broken != fixed
        ast.parse(broken)
        ast.parse(fixed)
    assert {path.name for path in SCRIPTS.iterdir() if path.name != "__pycache__"} == {
        each.name for each in DEMOS
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bypassed-wrapper", *long("hidden-exception", "unsharded-data")])
def test_demonstration_ends_with_its_code_and_the_corrected_lines(name: str, tmp_path: Path) -> None:
    told = demo(name, "--directory", "here", "--no-color", cwd=tmp_path)
    code = next(each.code for each in DEMOS if each.name == name)
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"✖ {code}" in told.stderr
    assert "the corrected code" in told.stdout
    assert f"+++ {FIXED}" in told.stdout
    assert (tmp_path / "here" / "run" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.long
def test_corrected_script_is_healthy(tmp_path: Path) -> None:
    told = demo("bypassed-wrapper", "--fixed", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "nothing found" in told.stderr


def test_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    told = demo("bypased-wrapper", cwd=tmp_path)
    assert told.returncode == 2
    assert "ddpdoctor demo bypassed-wrapper" in told.stderr


def test_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("here")
    told = demo("epoch-not-set", "--directory", ".", cwd=tmp_path)
    assert told.returncode == 2
    assert "is not empty" in told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_incident_of_two_nodes_is_analyzed_with_its_timeline(tmp_path: Path) -> None:
    told = demo("incident", "--directory", "here", "--no-color", cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "went silent 41 s later" in " ".join(told.stdout.split())
    assert "timeline (" in told.stdout
    page = (tmp_path / "here" / "incident.html").read_text()
    assert 'id="timeline"' in page
    assert demo("incident", "--fixed", cwd=tmp_path).returncode == 2
