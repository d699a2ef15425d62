"""``ddpdoctor lint``: exit codes, what it reads and what it shows."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

import ddpdoctor.report.schema
from ddpdoctor.plugins import Entry
from tests.cli.conftest import Run


@pytest.fixture
def entries() -> list[Entry]:
    """What is installed, not the made-up checks of the other commands' tests."""
    return []


WRONG = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
DOUBTFUL = "import torch.distributed as dist\nif save and dist.get_rank() == 0:\n    dist.barrier()\n"
RIGHT = "import torch.distributed as dist\ndist.barrier()\nopen('touched', 'w')\n"


def test_finding_shows_call_and_condition(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WRONG)
    result = run("lint", "train.py")
    assert result.code == 1
    assert "COL002 collective-missing" in result.out
    assert "train.py:3" in result.out
    assert "if dist.get_rank() == 0:" in result.out
    assert "next: ddpdoctor explain COL002" in result.out


def test_right_file_is_fine_and_is_not_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").write_text(RIGHT)
    result = run("lint", ".")
    assert result.code == 0
    assert "1 file read" in result.out
    assert "next: ddpdoctor run 'my train.py'" in result.out
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--fail-on", "warning"), 1),
        (("--fail-on", "warning", "--ignore", "COL002"), 0),
        (("--fail-on", "warning", "--select", "COL006"), 0),
    ],
)
def test_doubtful_finding_counts_as_a_warning(
    run: Run, tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(DOUBTFUL)
    assert run("lint", str(path), *options).code == code


def test_report_fits_the_schema(run: Run, tmp_path: Path) -> None:
    import jsonschema

    (tmp_path / "train.py").write_text(WRONG)
    assert run("lint", str(tmp_path), "--json", str(tmp_path / "r.json")).code == 1
    schema = Path(ddpdoctor.report.schema.__file__).with_name(ddpdoctor.report.schema.SCHEMA_FILE)
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(report, json.loads(schema.read_text()))
    assert report["findings"][0]["where"][0]["column"] == 5
    again = run("report", str(tmp_path / "r.json"))
    assert "COL002" in again.out


def test_pipe_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    result = run("lint", "-")
    assert result.code == 1
    assert "<stdin>:3" in result.out


def test_what_cannot_be_read_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\nif x\n")
    alone = run("lint", str(tmp_path))
    assert (alone.code, alone.out) == (3, "")
    assert "none of the given files could be read" in alone.err
    (tmp_path / "good.py").write_text(RIGHT)
    both = run("lint", str(tmp_path))
    assert both.code == 3
    assert "1 of 2 files could not be read in full" in " ".join(both.out.split())
    assert "bad.py was not read: line 2" in both.err
    missing = run("lint", str(tmp_path / "none.py"))
    assert missing.code == 2


def test_hidden_finding_is_counted_and_fails_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        WRONG.replace("barrier()", "barrier()  # ddpdoctor: ignore[COL002] only one rank")
        + "x = 1  # ddpdoctor: ignore[COL006]\n"
    )
    result = run("lint", str(path), "--json", str(tmp_path / "r.json"))
    assert result.code == 0
    assert "1 finding suppressed: 1 by comment" in result.out
    assert "ignore[COL006] has no reason" in " ".join(result.out.split())
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["findings"][0]["suppression"] == {"by": "comment", "reason": "only one rank", "line": 3}
    assert {row["status"] for row in report["checks"]} == {"pass"}
    again = run("report", str(tmp_path / "r.json"))
    assert "ignore[COL006]" in again.out


def test_excluded_files_are_not_read_also_where_they_are_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("old/train.py").write_text(WRONG)
    Path("new.py").write_text(RIGHT)
    Path("pyproject.toml").write_text('[tool.ddpdoctor.lint]\nexclude = ["old"]\n')
    assert "1 file read" in run("lint", ".").out
    named = run("lint", "old/train.py")
    assert named.code == 0
    assert "all given files are excluded" in named.err
    assert run("lint", ".", "--exclude", "new.py").code == 1
    bad = run("lint", ".", "--exclude", "[z-a]")
    assert (bad.code, "'[z-a]' is not a valid path pattern" in bad.err) == (2, True)


def test_codes_of_some_files_do_not_count(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lessons").mkdir()
    Path("lessons/train.py").write_text(WRONG)
    settings = '[tool.ddpdoctor.lint.per_file_ignores]\n"lessons/*" = ["collective-missing", "COL006"]\n'
    Path("pyproject.toml").write_text(settings)
    result = run("lint", ".")
    assert result.code == 0
    assert "1 finding suppressed: 1 by configuration" in result.out
    monkeypatch.chdir(tmp_path / "lessons")
    assert run("lint", "train.py").code == 0
    Path("../pyproject.toml").write_text(settings.replace("COL006", "COL0O6"))
    wrong = run("lint", "train.py")
    assert wrong.code == 2
    assert "COL0O6" in wrong.err
    Path("../pyproject.toml").write_text(settings.replace("per_file_ignores", "per_file_ignore"))
    assert "per_file_ignores" in run("lint", "train.py").err


def test_only_what_is_not_in_the_baseline_counts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WRONG)
    written = run("lint", ".", "--write-baseline", "lint.json")
    assert (written.code, written.out) == (0, "")
    assert "1 finding in lint.json" in written.err
    Path("train.py").write_text("import os\n\n" + WRONG)
    assert run("lint", ".", "--baseline", "lint.json").code == 0
    Path("train.py").write_text(WRONG + WRONG.replace("barrier()", "all_reduce(x)"))
    assert run("lint", ".", "--baseline", "lint.json").code == 1
    Path("train.py").write_text(RIGHT)
    assert "which is no longer found: dist.barrier()" in run("lint", ".", "--baseline", "lint.json").out
    assert run("lint", ".", "--baseline", "none.json").code == 2
    assert run("lint", ".", "--baseline", "train.py").code == 3


LONG = """\
import torch.distributed as dist
from helpers import total

class Trainer:
    def fit(self, loader, model):
        rank = dist.get_rank()
        if rank == 0:
            mean = total(model.module.compute_the_loss_of_this_batch_with_all_options(loader, True, False))
            print(mean)
            dist.barrier()
        if rank > 0:
            return
        dist.barrier()
"""
SHOWN = """\
train.py:8:20 COL002 collective-missing · error · on every path
   all_reduce (below the call in Trainer.fit) at train.py:8 is called only where
   rank == 0: the other ranks never reach it.
    7 │ if rank == 0:                                ← only some ranks enter
    8 │     mean = total(model.module.compute_the…   ← not all ranks reach this
      ⋮
   10 │     dist.barrier()                           ← not all ranks reach this
   helpers.py
    3 │ dist.all_reduce(x)   ← issues all_reduce
   fix   move the call out of the `if` so that every rank executes it
           if rank == 0:
               ...
           mean = total(model.module.compute_the_loss_of_this_batch_with_all_options(loader, True, False))
"""


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_stand_beside_the_words_on_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    Path("train.py").write_text(LONG)
    Path("helpers.py").write_text("import torch.distributed as dist\ndef total(x):\n    dist.all_reduce(x)\n")
    out = run("lint", "train.py", "helpers.py").out
    assert out.startswith("ddpdoctor ✖ 2 errors in 1 file")
    listed = [line for line in out.splitlines() if "│" in line]
    assert len(listed) == 6
    assert max(map(len, listed)) <= width
    assert [line for line in listed if "some ranks return" in line] == [
        line for line in listed if line.startswith("   11 │ if rank > 0:") and width > 40
    ]
    if width == 80:
        assert out[out.index("train.py:8") :].startswith(SHOWN)


PARSER = (
    "import argparse, torch.distributed as dist\np = argparse.ArgumentParser()\n"
    "p.add_argument('--local_rank', type=int)\np.parse_args()\ndist.init_process_group('gloo')\n"
    "dist.destroy_process_group()\n"
)


def test_safe_correction_is_shown_and_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARSER)
    assert "--fix can correct 1 of these" in run("lint", "train.py").err
    shown = run("lint", "train.py", "--diff")
    assert shown.code == 1
    assert "+p.add_argument('--local_rank', '--local-rank', type=int)\n" in shown.out
    assert Path("train.py").read_text() == PARSER
    fixed = run("lint", "train.py", "--fix")
    assert fixed.code == 0
    assert "1 finding corrected in 1 file" in fixed.err
    assert Path("train.py").read_text() == PARSER.replace("_rank',", "_rank', '--local-rank',")
    assert run("lint", "train.py", "--diff").out == ""


@pytest.mark.parametrize(
    "options",
    [("train.py", "--fix", "--diff"), ("-", "--fix"), ("train.py", "--fix", "--write-baseline", "b")],
)
def test_corrections_that_have_no_meaning_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARSER)
    assert run("lint", *options).code == 2
    assert Path("train.py").read_text() == PARSER


def notebook(path: Path, *cells: str) -> str:
    rows = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"cells": rows, "nbformat": 4}))
    return str(path)


def test_source_that_was_only_read_is_never_called_healthy(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(RIGHT)
    for form in ("text", "markdown", "html", "github", "junit"):
        result = run("lint", str(tmp_path), "--format", form, "-o", "-")
        assert result.code == 0
        assert form == "junit" or "no issues found" in result.out.lower(), form
        seen = re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]*>", "", result.out, flags=re.DOTALL)
        assert "healthy" not in seen.lower(), form


def test_files_that_are_passed_over_are_not_counted_as_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import mylib\nmylib.train()\n")
    alone = run("lint", str(tmp_path))
    assert "0 files read, 1 skipped (no distributed library in it)" in " ".join(alone.out.split())
    (tmp_path / "good.py").write_text(RIGHT)
    both = run("lint", str(tmp_path))
    assert "1 file read, 1 skipped (no distributed library in it)" in " ".join(both.out.split())


def test_cells_that_are_no_python_make_the_verdict_incomplete(run: Run, tmp_path: Path) -> None:
    name = notebook(tmp_path / "train.ipynb", RIGHT, "if x")
    result = run("lint", name)
    assert result.code == 3
    assert "cell 2: " in result.err
    written = run("lint", notebook(tmp_path / "train.ipynb", RIGHT, "%%writefile train.py\n" + WRONG))
    assert (written.code, "%%writefile" in written.err) == (3, True)


def test_cells_of_other_languages_are_nobodys_and_timed_ones_are_read(run: Run, tmp_path: Path) -> None:
    assert run("lint", notebook(tmp_path / "a.ipynb", RIGHT, "%%bash\nls")).code == 0
    timed = run("lint", notebook(tmp_path / "b.ipynb", "%%time\n" + WRONG))
    assert (timed.code, "(cell 1)" in timed.out) == (1, True)


ASKED = """import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
use(torch.load("start.pt"))
dist.destroy_process_group()
"""


def test_questions_are_counted_and_shown_where_they_are_asked_for(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(ASKED)
    plain = run("lint", str(path), "--ignore", "BKD004", "--fail-on", "warning")
    assert plain.code == 0
    assert "no issues found, 1 question " in plain.out + " "
    assert "CKP003" not in plain.out
    shown = run("lint", str(path), "--ignore", "BKD004", "--fail-on", "warning", "--questions")
    assert shown.code == 0
    assert "CKP003" in shown.out
    assert "no issues found, 1 question " in shown.out + " "


def test_questions_are_in_reports_only_where_they_are_asked_for(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(ASKED + "if dist.get_rank() == 0:\n    dist.barrier()\n")
    plain = run("lint", str(path), "--format", "json")
    roles = [each["role"] for each in json.loads(plain.out)["findings"]]
    assert "question" not in roles
    assert "1 question not shown, see --questions" in plain.err
    asked = run("lint", str(path), "--format", "json", "--questions")
    found = [each for each in json.loads(asked.out)["findings"] if each["role"] == "question"]
    assert [(each["code"], each["severity"]) for each in found] == [("CKP003", "info")]
    assert plain.code == asked.code
