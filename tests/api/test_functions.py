"""``import ddpdoctor``: light to import, typed, and the same diagnosis as the commands give."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import ddpdoctor
from ddpdoctor import cli
from tests.unmeasured import unmeasured

ROOT = Path(__file__).resolve().parents[2]
GUARDED = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
LOG = ROOT / "tests" / "gather" / "aftermath" / "key.txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(GUARDED)
    (tmp_path / "train.log").write_text(LOG.read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_import_loads_nothing_that_costs() -> None:
    code = "import sys, ddpdoctor; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=unmeasured(), capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "rich", "jinja2", "psutil", "ddpdoctor.api", "dataclasses"}


def test_lint_and_analyze_import_neither_torch_nor_rich(folder: Path) -> None:
    code = (
        "import sys, ddpdoctor\n"
        "ddpdoctor.lint('train.py'), ddpdoctor.analyze('train.log')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=unmeasured(), capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"torch", "rich"}


def test_every_public_name_is_there() -> None:
    assert all(hasattr(ddpdoctor, name) for name in ddpdoctor.__all__)
    assert set(ddpdoctor.__all__) <= set(dir(ddpdoctor))
    offered = {name for names in ddpdoctor._HOMES.values() for name in names}
    assert offered | {"__version__"} == set(ddpdoctor.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = ddpdoctor.nothing


def saved_by(*arguments: str) -> dict[str, Any]:
    """What a command writes with --json, without what differs from call to call."""
    cli.main([*arguments, "--json", "saved.json", "-q"])
    return comparable(json.loads(Path("saved.json").read_text()))


def comparable(report: dict[str, Any]) -> dict[str, Any]:
    rows = [{**row, "duration_s": 0} for row in report["checks"]]
    return {**report, "checks": rows, "measurements": {}, "invocation": [], "started_at": "", "duration_s": 0}


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (lambda: ddpdoctor.lint("train.py"), ("lint", "train.py")),
        (lambda: ddpdoctor.lint("train.py", select="NUM"), ("lint", "train.py", "--select", "NUM")),
        (
            lambda: ddpdoctor.lint("train.py", per_file_ignores={"*.py": ["COL002"]}),
            ("lint", "train.py", "--per-file-ignores", "*.py=COL002"),
        ),
        (lambda: ddpdoctor.analyze("train.log"), ("analyze", "train.log")),
        (lambda: ddpdoctor.analyze("train.log", ignore=["ERR"]), ("analyze", "train.log", "--ignore", "ERR")),
    ],
)
def test_functions_report_what_the_commands_report(
    folder: Path, call: Callable[[], ddpdoctor.Report], command: tuple[str, ...]
) -> None:
    made = comparable(json.loads(ddpdoctor.render(call(), "json")))
    assert made == saved_by(*command)


def test_findings_say_where_and_what_to_do(folder: Path) -> None:
    (finding,) = ddpdoctor.lint(folder / "train.py").findings
    assert (finding.code, finding.severity, finding.confidence) == ("COL002", "error", "high")
    assert (finding.where[0].file, finding.where[0].line) == ("train.py", 4)
    assert finding.fix[0].text.startswith("move the call out of the `if`")


def test_texts_are_read_like_files(folder: Path) -> None:
    (finding,) = ddpdoctor.lint(text=GUARDED).findings
    assert finding.where[0].file == "<stdin>"
    kept, piped = ddpdoctor.analyze("train.log"), ddpdoctor.analyze(text=LOG.read_text())
    assert kept.verdict.status == "problems"
    assert [each.code for each in piped.findings] == [each.code for each in kept.findings]


def test_secrets_do_not_reach_the_caller(folder: Path) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    (folder / "train.log").write_text(LOG.read_text().replace("label_9917", f"label {secret}"))
    report = ddpdoctor.analyze("train.log")
    assert "label" in report.findings[0].message
    assert secret not in json.dumps(report.to_dict())


def test_baseline_and_exclusions_are_those_of_the_command(folder: Path) -> None:
    assert cli.main(["lint", "train.py", "--write-baseline", "known.json"]) == 0
    states = [each.state for each in ddpdoctor.lint("train.py", baseline="known.json").findings]
    assert states == ["suppressed"]
    with pytest.raises(ddpdoctor.UsageError, match="excluded"):
        ddpdoctor.lint("train.py", exclude="train.py")


def test_corrections_are_what_fix_writes(folder: Path) -> None:
    raced = "import os\n" + GUARDED.replace(
        "if dist", "dist.init_process_group('gloo')\nos.makedirs('out')\nif dist"
    )
    (folder / "train.py").write_text(raced)
    made = list(ddpdoctor.corrections(ddpdoctor.lint("train.py")))
    assert (folder / "train.py").read_text() == raced
    assert [each.file for each in made] == ["train.py"]
    cli.main(["lint", "train.py", "--fix", "-q"])
    assert (folder / "train.py").read_bytes() == made[0].after != made[0].before
    assert not list(ddpdoctor.corrections(ddpdoctor.lint(text=raced)))


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: ddpdoctor.lint("no.py"), "there is no file or directory no.py", "ddpdoctor lint train.py"),
        (lambda: ddpdoctor.lint(), "neither a path nor a text was given", "ddpdoctor.lint('train.py')"),
        (lambda: ddpdoctor.lint("train.py", select="COL02"), "--select: no installed check", "--select COL"),
        (lambda: ddpdoctor.analyze("no.log"), "there is no file or directory no.log", "tee train.log"),
        (lambda: ddpdoctor.load_report("no.json"), "there is no file no.json", "--json report.json"),
        (lambda: ddpdoctor.check(0), "0 ranks cannot be launched", "--nproc 4"),
        (lambda: ddpdoctor.check("gpus"), "there is no 'gpus'", "--nproc gpu"),
        (lambda: ddpdoctor.check(only="ddpp"), "--only: there is no 'ddpp'", "--only ddp"),
        (
            lambda: ddpdoctor.check(only="tcp", skip="ddp"),
            "use only one of --only and --skip",
            "--only selects",
        ),
        (lambda: ddpdoctor.check(nnodes=2), "2 nodes need a rendezvous endpoint", "--rdzv-endpoint"),
        (lambda: ddpdoctor.check(master_port=99999), "--master-port: 99999 is out of range", "--master-port"),
        (lambda: ddpdoctor.check(model="x"), "--model: 'x'", "--model"),
    ],
)
def test_errors_say_what_to_do(folder: Path, call: Callable[[], object], message: str, hint: str) -> None:
    with pytest.raises(ddpdoctor.UsageError) as caught:
        call()
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert str(caught.value).startswith(caught.value.message)
    assert f"  try: {caught.value.hint}" in str(caught.value)


def test_format_that_does_not_exist_is_an_output_error(folder: Path) -> None:
    with pytest.raises(ddpdoctor.OutputError, match="there is no format 'pdf'") as caught:
        ddpdoctor.render(ddpdoctor.lint("train.py"), "pdf")
    assert "sarif" in (caught.value.context or "")


def test_run_directory_is_a_report(folder: Path) -> None:
    report = ddpdoctor.analyze("train.log")
    (folder / "run").mkdir()
    (folder / "run" / "report.json").write_text(ddpdoctor.render(report, "json"))
    assert ddpdoctor.load_report("run").verdict == report.verdict


def test_check_leaves_the_callers_other_children_alone(folder: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        report = ddpdoctor.check(2, only=["facts", "smoke", "tcp", "rendezvous", "backends"])
        assert (report.verdict.status, report.world.size) == ("healthy", 2)
        assert other.poll() is None
        assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        assert [each.pid for each in psutil.Process().children()] == [other.pid]
    finally:
        other.kill()
        other.wait()


def test_error_of_the_check_comes_back_as_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "torch.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with pytest.raises(ddpdoctor.UsageError, match="--select: no installed check"):
        ddpdoctor.check(2, only="facts", select="XYZ123")


def test_process_that_dies_without_a_report_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "python").write_text("#!/bin/sh\necho out of luck >&2\nexit 5\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    with pytest.raises(ddpdoctor.DoctorError, match="without a report") as caught:
        ddpdoctor.check(2)
    assert caught.value.context == "out of luck"


def test_check_in_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ddpdoctor.UsageError, match="already a rank") as caught:
        ddpdoctor.check(2)
    assert "torchrun" in (caught.value.hint or "")


def test_interrupted_check_leaves_no_process(folder: Path) -> None:
    code = "import ddpdoctor; print('on', flush=True); ddpdoctor.check(2)"
    started = subprocess.Popen(
        [sys.executable, "-c", code], env=unmeasured(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    started.stdout.readline()
    parent = psutil.Process(started.pid)
    while not (below := parent.children(recursive=True)):
        assert started.poll() is None
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGINT)
    started.communicate()
    assert started.returncode != 0
    psutil.wait_procs(below)


def test_examples_of_the_page_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/api.md", "exec"), names)
    shown = capsys.readouterr().out
    assert len(blocks) == 7
    assert "COL002 error high" in shown
    assert "root cause: ERR001 on ranks 1" in shown
    assert "tee train.log" in shown


def test_page_names_every_function() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert all(f"| `{name}(" in page for name in ddpdoctor._HOMES["ddpdoctor.api.functions"])
