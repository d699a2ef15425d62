from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence import Absent, Cpus, Evidence, PortProbe, RankError
from ddpdoctor.evidence.gatherers import GathererRegistry
from ddpdoctor.judge import Registry
from ddpdoctor.plugins import CHECKS, RENDERERS, Entry
from ddpdoctor.report import RendererRegistry, RenderOptions, Report
from ddpdoctor.testing import make_node, make_world
from tests.cli.conftest import Run, Stage

ONE_CORE = Cpus(logical=8, affinity=1)
TAKEN: dict[str, Any] = {"ports": (PortProbe(0, 29500, "taken", holder_pid=4242),)}
FEW_CORES: dict[str, Any] = {"nodes": (make_node(0, cpus=ONE_CORE),)}


def test_healthy_world_is_said_with_how_much_was_looked_at(run: Run) -> None:
    result = run("check")
    assert result.code == 0
    first = result.out.splitlines()[0]
    assert re.fullmatch(r"ddpdoctor ✓ healthy · 2 ranks on 1 node, gloo, torch 2\.13\.0 · 1\.\d+ s", first)
    assert result.out.endswith("\n  3 of 3 checks ran\n")
    assert result.err == ""


def test_error_is_the_verdict_and_exit_1(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(**TAKEN)
    result = run("check")
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[0].startswith("ddpdoctor ✖ NET001 port-in-use · high confidence")
    assert lines[2] == "  Port 29500 is held by process 4242."
    assert lines[-2] == "  next: ddpdoctor explain NET001"


@pytest.mark.parametrize(
    ("changes", "fail_on", "code"),
    [
        (TAKEN, "error", 1),
        (TAKEN, "warning", 1),
        (TAKEN, "never", 0),
        (FEW_CORES, "error", 0),
        (FEW_CORES, "warning", 1),
        ({"errors": (RankError(0, "ddp", "X", "y"),)}, "warning", 0),
        ({}, "warning", 0),
    ],
)
def test_fail_on_decides_the_exit_code(
    run: Run, stage: Stage, changes: dict[str, Any], fail_on: str, code: int
) -> None:
    stage.evidence = make_world(**changes)
    assert run("check", "--fail-on", fail_on).code == code


def test_nothing_looked_at_is_exit_3(run: Run, stage: Stage, entries: list[Entry]) -> None:
    stage.evidence = make_world(nodes=[make_node(0, cpus=None)])
    result = run("check", "--select", "ENV011")
    assert result.code == 3
    assert result.out.startswith("ddpdoctor ? inconclusive · ")


def test_verdict_that_could_not_be_reached_is_exit_3_not_0(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(nodes=[make_node(0, cpus=None)])
    for fail_on in ("error", "never"):
        result = run("check", "--fail-on", fail_on)
        assert result.code == 3
        assert result.out.startswith("ddpdoctor ? inconclusive · ")
    stage.evidence = make_world(nodes=[make_node(0, cpus=None)], **TAKEN)
    assert run("check").code == 1
    assert run("check", "--fail-on", "never").code == 0  # the error says why


def test_warning_does_not_turn_what_could_not_be_seen_into_success(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(**FEW_CORES)
    assert run("check").code == 0
    stage.evidence = replace(stage.evidence, ports=(), absent={"ports": Absent("stage tcp cut")})
    result = run("check")
    assert result.out.startswith("ddpdoctor ! ENV011")
    assert result.code == 3


def test_interrupted_check_still_reports_and_ends_with_130(run: Run, stage: Stage) -> None:
    stage.outcome = {"interrupted": "SIGTERM"}
    result = run("check")
    assert result.code == 130
    assert "interrupted by SIGTERM" in result.out.splitlines()[0]


def test_error_of_the_launch_is_shown_as_it_is(run: Run, stage: Stage) -> None:
    stage.error = DoctorError("torch is missing", hint="pip install torch")
    result = run("check")
    assert (result.code, result.out) == (3, "")
    assert result.err == "ddpdoctor: torch is missing\n  try: pip install torch\n"


def test_rank_that_is_not_the_spokesman_is_silent(run: Run, stage: Stage, tmp_path: Path) -> None:
    stage.outcome = {"spokesman": False}
    result = run("check", "--json", "report.json")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert not (tmp_path / "report.json").exists()


def test_select_and_ignore_choose_findings_and_checks(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(**TAKEN)
    assert "3 of 3 checks" in run("check").out
    assert run("check", "--ignore", "port-in-use").out.startswith("ddpdoctor ✓ healthy · 2 ranks")
    assert "of 1 checks ran" in run("check", "--select", "net001").out
    assert "2 of 2 checks" in run("check", "--select", "NET").out
    assert run("check", "--select", "NET", "--ignore", "NET001").code == 0


def test_files_do_not_replace_the_text(run: Run, tmp_path: Path) -> None:
    result = run("check", "--json", "a.json", "--format", "text", "-o", "b.txt")
    assert result.code == 0
    assert result.out.startswith("ddpdoctor ✓ healthy")
    assert "  report a.json\n  report b.txt\n" in result.out
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "ddpdoctor.report"
    assert (tmp_path / "b.txt").read_text().startswith("ddpdoctor ✓ healthy")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.json", "b.txt"]


def test_formats_and_files_pair_in_order(run: Run, tmp_path: Path) -> None:
    assert run("check", "--format", "json", "--format", "text", "-o", "a", "-o", "b").code == 0
    assert (tmp_path / "a").read_text().startswith("{")
    assert (tmp_path / "b").read_text().startswith("ddpdoctor")


@pytest.mark.parametrize(
    "arguments", [["--json", "-"], ["--format", "json"], ["--format", "json", "-o", "-"]]
)
def test_json_on_stdout_is_alone_there(run: Run, arguments: list[str]) -> None:
    result = run("check", *arguments)
    data = json.loads(result.out)
    assert data["verdict"]["status"] == "healthy"
    assert data["invocation"] == ["ddpdoctor", "check", *arguments]
    assert data["started_at"] == "2026-01-02T03:04:05.000000Z"


@pytest.mark.parametrize("path", ["missing/report.json", ".", "/proc/report.json", "a\0b"])
@pytest.mark.parametrize("command", [("check", "--json"), ("run", "train.py", "--html")])
def test_outputs_are_tried_before_anything_is_launched(
    run: Run, tmp_path: Path, command: tuple[str, ...], path: str
) -> None:
    (tmp_path / "train.py").write_text("print('launched')")
    name, *rest, option = command
    result = run(name, option, path, *rest)
    assert (result.code, result.out) == (3, "")
    assert "cannot be written" in result.err
    assert not (tmp_path / "ddpdoctor-runs").exists()


def test_output_that_turns_out_to_be_full_loses_nothing(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(**TAKEN)
    result = run("check", "--json", "/dev/full")
    assert result.code == 3
    assert result.out.startswith("ddpdoctor ✖ NET001")
    assert "could not be written" in result.err
    assert "Traceback" not in result.err


def test_existing_file_is_replaced_whole_and_keeps_its_mode(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("x" * 1_000_000)
    target.chmod(0o640)
    assert run("check", "--json", "r.json").code == 0
    assert json.loads(target.read_text())
    assert target.stat().st_mode & 0o777 == 0o640


def test_quiet_shows_only_the_verdict(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(**TAKEN)
    lines = run("check", "-q").out.splitlines()
    assert len(lines) <= 2
    assert lines[0].startswith("ddpdoctor ✖ NET001")


def test_verbose_shows_each_check_with_its_reason(run: Run, stage: Stage) -> None:
    stage.evidence = make_world(nodes=[make_node(0, cpus=None)])
    out = run("check", "-v").out
    assert re.search(r"✓ net\.port\.free$", out, re.MULTILINE)
    assert "? env.threads.fit unknown: cores are not known" in out


def test_several_nodes_write_what_they_saw_and_the_host_the_merged_report(
    run: Run, stage: Stage, tmp_path: Path
) -> None:
    stage.evidence = make_world(nodes=2)
    assert run("check").code == 0
    folder = tmp_path / "ddpdoctor-runs" / "made-up"
    assert sorted(path.name for path in folder.iterdir()) == ["node-0.json", "report.html", "report.json"]
    stage.outcome = {"hosting": False}
    assert run("check", "--run-dir", "elsewhere").code == 0
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["node-0.json"]


def test_run_directory_that_cannot_be_made_loses_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("check", "--run-dir", "file/below")
    assert result.code == 3
    assert result.out.startswith("ddpdoctor ✓ healthy")
    assert "could not be written" in result.err


def test_secrets_of_the_command_line_are_not_kept(run: Run) -> None:
    data = json.loads(run("check", "--json", "-", "--rdzv-id", "hf_abcdefghijklmnopqrstuvwxyz").out)
    assert "abcdefghijkl" not in json.dumps(data["invocation"])


def test_broken_plugin_is_named_and_harms_nothing(run: Run, entries: list[Entry]) -> None:
    def fail() -> Callable[[Registry], None]:
        raise ImportError("no module named this")

    entries.append(Entry("bad-dist", CHECKS, "it", fail))
    result = run("check")
    assert result.code == 0
    assert result.out.startswith("ddpdoctor ✓ healthy")
    assert "bad-dist: ImportError: no module named this" in result.out.replace("\n    ", " ")
    data = json.loads(run("check", "--json", "-").out)
    row = next(row for row in data["checks"] if row["family"] == "plugins")
    assert (row["status"], row["source"]) == ("error", "bad-dist")


def test_what_plugins_print_does_not_reach_stdout(
    run: Run, entries: list[Entry], gatherers: Callable[[Callable[[GathererRegistry], object]], None]
) -> None:
    def load() -> Callable[[RendererRegistry], None]:
        print("loading")
        return lambda registry: print("registering")

    def look(facts: object) -> dict[str, object]:
        print("looking")
        return {}

    def add(registry: GathererRegistry) -> None:
        registry.add("noisy", look)

    entries.append(Entry("noisy-dist", RENDERERS, "it", load))
    gatherers(add)
    result = run("check", "--json", "-")
    assert json.loads(result.out)["schema"] == "ddpdoctor.report"
    assert all(word in result.err for word in ("loading", "registering", "looking"))


def test_gatherer_of_a_plugin_is_seen_by_checks_and_its_failure_is_shown(
    run: Run, gatherers: Callable[[Callable[[GathererRegistry], object]], None]
) -> None:
    def boom(facts: object) -> dict[str, object]:
        raise RuntimeError("no sensor")

    def add(registry: GathererRegistry) -> None:
        registry.add("host", lambda facts: {"name": facts.host})
        registry.add("broken", boom)

    gatherers(add)
    data = json.loads(run("check", "--json", "-").out)
    assert data["evidence"]["extra"] == {"some-dist/host": {"0": {"name": "node-0"}}}
    reasons = [row["reason"] for row in data["checks"] if row["status"] == "error"]
    assert reasons == ["some-dist: broken: RuntimeError: no sensor"]
    assert data["verdict"]["status"] == "healthy"


class Shouting:
    """A renderer of somebody's."""

    name = "shout"
    description = "in capitals"

    def render(self, report: Report, options: RenderOptions) -> str:
        if report.verdict.status != "healthy":
            raise ValueError("only good news")
        return report.verdict.status.upper() + "\n"


def test_renderer_of_a_plugin_is_a_format_and_its_failure_leaves_the_text(
    run: Run, stage: Stage, entries: list[Entry]
) -> None:
    def register(registry: RendererRegistry) -> None:
        registry.add(Shouting())

    entries.append(Entry("loud-dist", RENDERERS, "it", lambda: register))
    assert run("check", "--format", "shout").out == "HEALTHY\n"
    stage.evidence = make_world(**TAKEN)
    result = run("check", "--format", "shout")
    assert result.code == 3
    assert result.out.startswith("ddpdoctor ✖ NET001")
    assert "format shout (from loud-dist) failed: ValueError: only good news" in result.err


def test_evidence_of_hostile_text_reaches_the_terminal_harmless(run: Run, stage: Stage) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2Jnode\u202e\r\n"
    stage.evidence = make_world(nodes=[make_node(0, host=hostile, cpus=ONE_CORE)])
    out = run("check").out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out
    assert "\\x1b]0;owned" in out


def test_empty_evidence_is_reported_too(run: Run, stage: Stage) -> None:
    stage.evidence = Evidence()
    result = run("check")
    assert result.out.startswith("ddpdoctor")
    assert "Traceback" not in result.err
