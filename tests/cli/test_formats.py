"""Formats that other programs read, by the options of the commands."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddpdoctor.evidence import PortProbe
from ddpdoctor.report import RenderOptions
from ddpdoctor.report.json_renderer import JsonRenderer
from ddpdoctor.testing import make_world
from tests.cli.conftest import Run, Stage
from tests.report.samples import sample_problems
from tests.report.sarif import find_problems


@pytest.fixture
def taken(stage: Stage) -> None:
    stage.evidence = make_world(ports=(PortProbe(0, 29500, "taken", holder_pid=4242),))


@pytest.mark.usefixtures("taken")
def test_formats_and_files_pair_and_the_text_is_printed(run: Run, tmp_path: Path) -> None:
    names = ("junit", "sarif", "github", "markdown", "prometheus")
    pairs = [word for name in names for word in ("--format", name, "-o", f"out.{name}")]
    result = run("check", *pairs)
    assert result.code == 1
    assert result.out.startswith("ddpdoctor ✖ NET001")
    files = {name: (tmp_path / f"out.{name}").read_text() for name in names}
    assert ElementTree.fromstring(files["junit"]).get("failures") == "2"
    assert find_problems(files["sarif"]) == []
    assert files["github"].startswith("::error title=NET001 port-in-use::Port 29500")
    assert files["markdown"].startswith("## ddpdoctor ✖ NET001 port-in-use\n")
    assert 'ddpdoctor_findings{command="check",code="NET001"' in files["prometheus"]


@pytest.mark.usefixtures("taken")
def test_saved_report_gives_the_same_as_the_command(run: Run, tmp_path: Path) -> None:
    run("check", "--json", "saved.json", "--format", "markdown", "-o", "first.md")
    result = run("report", "saved.json", "--format", "markdown")
    assert (result.code, result.err) == (0, "")
    assert result.out == (tmp_path / "first.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--format", "markdwon"], "--format markdown"),
        (["--format", "SARIF"], "--format sarif"),
        (["-o", "summary.md"], "--format markdown -o summary.md"),
        (["-o", "ddpdoctor.prom"], "--format prometheus -o ddpdoctor.prom"),
        (["-o", "checks.xml"], "--format junit -o checks.xml"),
        (["-o", "lint.sarif"], "--format sarif -o lint.sarif"),
        (["--format", "github", "--format", "sarif"], "--format github -o FILE"),
    ],
)
def test_mistyped_format_is_suggested(run: Run, arguments: list[str], hint: str) -> None:
    result = run("check", *arguments)
    assert result.code == 2
    assert hint in result.err


@pytest.mark.usefixtures("taken")
def test_step_summary_is_added_to(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary"
    summary.write_text("# Before\n\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        run("check", "--format", "markdown", "-o", str(summary))
    text = summary.read_text()
    assert text.startswith("# Before\n\n## ddpdoctor ✖ NET001")
    assert text.count("## ddpdoctor") == 2


@pytest.mark.parametrize("variable", ["GITHUB_WORKSPACE", "CI_PROJECT_DIR"])
def test_files_are_named_from_the_top_of_the_checkout(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "sub").mkdir()
    saved = JsonRenderer().render(sample_problems(), RenderOptions())
    (tmp_path / "sub" / "saved.json").write_text(saved)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.chdir(tmp_path / "sub")
    assert "file=sub/models/reader.py," in run("report", "saved.json", "--format", "github").out
    assert '"sub/models/reader.py"' in run("report", "saved.json", "--format", "sarif").out
    monkeypatch.setenv(variable, "/elsewhere")
    assert "file=models/reader.py," in run("report", "saved.json", "--format", "github").out


def test_run_keeps_stdout_for_the_job(run: Run) -> None:
    result = run("run", "--format", "github", "missing.py")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("::error title=ddpdoctor found problems::the job failed")
