"""That the benchmarks measure what they say, at a tiny setting; their figures are not judged here."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import commands, judging, memory, reading, recorder, scale, simulated, timing
from benchmarks.figures import BenchmarkError, Figure, format_markdown, format_table
from benchmarks.timing import Command, Run
from ddpdoctor.evidence import Evidence, merge_evidence
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.testing import make_world

FAILING = Command("failing", (sys.executable, "-c", "import sys; print('the reason'); sys.exit(4)"))
IDLE = Command("idle", (sys.executable, "-c", "print('done')"))


def test_a_figure_below_its_bar_is_met_and_one_at_it_is_missed() -> None:
    assert Figure("x", "a", 0.9, "s", 1.0).met is True
    assert Figure("x", "a", 1.0, "s", 1.0).met is False
    assert Figure("x", "a", 1.0, "s").met is None


def test_tables_show_figure_bar_and_verdict() -> None:
    figures = [Figure("x", "a | b", 1.23456, "s", 2.0, "median"), Figure("x", "c", 5, "GiB", 4.0)]
    text = format_table(figures)
    assert "1.23 s" in text
    assert "< 2 s" in text
    assert "MISSED" in text.splitlines()[-1]
    markdown = format_markdown(figures, ["2 cores"])
    assert "| a \\| b | 1.23 s | < 2 s | met | median |" in markdown
    assert "Measured on 2 cores." in markdown


def test_commands_run_in_turn_as_often_as_asked(tmp_path: Path) -> None:
    runs = timing.run_in_turn([IDLE, dataclasses.replace(IDLE, name="again")], 3, tmp_path)
    assert [len(taken) for taken in runs.values()] == [3, 3]
    assert all(run.seconds > 0 and run.cpu_seconds > 0 and run.output == "done\n" for run in runs["idle"])


def test_a_command_that_fails_is_not_timed(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="failing ended with 4:\nthe reason"):
        timing.run_once(FAILING, tmp_path)


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LIMIT_S", 0.2)
    sleeper = Command("sleeper", (sys.executable, "-c", "import time; time.sleep(600)"))
    with pytest.raises(BenchmarkError, match=r"sleeper did not end within 0\.2 s"):
        timing.run_once(sleeper, tmp_path)


def test_the_ratio_is_that_of_the_medians() -> None:
    first = [Run(seconds, 0.0, "") for seconds in (2.0, 2.0, 9.0)]
    second = [Run(seconds, 0.0, "") for seconds in (4.0, 1.0, 4.0)]
    assert timing.compare(first, second) == (0.5, "by round 0.5-2.25")


def test_memory_of_children_is_seen() -> None:
    held = "x = bytearray(60_000_000); print(len(x), flush=True); import time; time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        watched = memory.PeakMemory(process)
        deadline = time.monotonic() + 60
        while watched.looks < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        watched.close()
        assert watched.peak > 60_000_000
        assert watched.processes == 2
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _rows(evidence: Evidence) -> dict[str, set[str]]:
    return {kind: {repr(row) for row in getattr(evidence, kind)} for kind in KINDS}


@pytest.mark.parametrize("shape", simulated.SHAPES)
def test_what_the_nodes_send_makes_the_whole_again(shape: str) -> None:
    world = simulated.SHAPES[shape](6, 2)
    parts = simulated.split_by_node(world, 2)
    assert len(parts) == 6
    assert _rows(merge_evidence(parts)) == _rows(world)


def test_the_broken_world_differs_from_the_healthy_one() -> None:
    healthy, broken = simulated.make_healthy(6, 2), simulated.make_broken(6, 2)
    differing = {kind for kind in KINDS if getattr(healthy, kind) != getattr(broken, kind)}
    assert differing == {"nodes", "ranks", "errors", "experiments", "pairs"}


def test_judging_is_measured_from_the_sent_lines_to_the_page(tmp_path: Path) -> None:
    found = {figure.what: figure for figure in judging.measure(tmp_path, nodes=3, nproc=2)}
    assert found["6 ranks, healthy: judge"].detail.endswith(", 0 findings, one run")
    assert not found["6 ranks, broken: judge"].detail.endswith(", 0 findings, one run")
    assert all(figure.value > 0 for figure in found.values())
    assert sum(figure.bar is not None for figure in found.values()) == 6


def test_imports_of_a_command_are_read_from_pythons_own_log(tmp_path: Path) -> None:
    light = Command("light", (sys.executable, "-c", "print('torch | torch')"))
    heavy = Command("heavy", (sys.executable, "-c", "import psutil"))
    assert commands.list_heavy_imports(light, tmp_path) == []
    assert commands.list_heavy_imports(heavy, tmp_path) == ["psutil"]


def test_a_required_check_that_could_not_look_counts_as_not_passed() -> None:
    states = [("pass", True), ("fail", True), ("unknown", True), ("unknown", False), ("skipped", True)]
    rows = [{"status": status, "required": required} for status, required in states]
    assert scale.count_checks({"checks": rows}) == (2, 1, 1)
    with pytest.raises(BenchmarkError, match="holds no check"):
        scale.count_checks({"checks": []})


def test_the_program_prints_and_writes_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(folder: Path, rounds: int = 7) -> list[Figure]:
        assert folder.is_dir()
        return [Figure("made-up", "rounds", rounds, "", 5)]

    monkeypatch.setitem(program.BENCHMARKS, "made-up", measure)
    file = tmp_path / "figures.md"
    assert program.main(["--only", "made-up", "--rounds", "2", "--markdown", str(file)]) == 0
    assert "1 of 1 bars met" in capsys.readouterr().out
    assert "| rounds | 2 | < 5 | met |" in file.read_text()
    assert program.main(["--only", "made-up"]) == 1
    assert "0 of 1 bars met; missed: rounds" in capsys.readouterr().out


def test_a_benchmark_that_cannot_run_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(folder: Path) -> list[Figure]:
        raise BenchmarkError("no torchrun")

    monkeypatch.setitem(program.BENCHMARKS, "made-up", measure)
    assert program.main(["--only", "made-up"]) == 3
    assert "made-up could not be measured: no torchrun" in capsys.readouterr().err


def test_worlds_of_the_benchmark_hold_every_kind_that_a_made_up_world_has() -> None:
    plain, ours = make_world(2, 2), simulated.make_healthy(2, 2)
    assert [kind for kind in KINDS if getattr(plain, kind)] == [kind for kind in KINDS if getattr(ours, kind)]


def test_dumps_are_read_by_both_programs_and_ours_names_the_rank(tmp_path: Path) -> None:
    figures = {figure.what: figure for figure in recorder.measure(tmp_path, 1, ((9, 12),))}
    assert len(figures) == 5
    ratio, memory_used = list(figures.values())[2], list(figures.values())[4]
    assert (ratio.bar, memory_used.bar) == (0.05, 400)
    assert 0 < memory_used.value < 400


def test_a_wrong_verdict_on_dumps_is_no_figure(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"findings": [{"code": "COL002", "ranks": [3], "message": "Rank 3 did it."}]}')
    with pytest.raises(BenchmarkError, match="Rank 3 did it"):
        recorder._require_right(report)


def test_alarms_of_lint_are_counted_for_a_thousand_files(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    wrong = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    for number in range(4):
        (files / f"train{number}.py").write_text(wrong if number == 0 else "import torch\n")
    seconds, processor, alarms = reading.measure_files("made up", files, tmp_path)
    assert seconds.value > 0
    assert processor.value > 0
    assert alarms.value == 250
    assert alarms.met is False
    assert "COL002" in alarms.detail
