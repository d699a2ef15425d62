"""Every form of a secret is planted wherever a command reads, and every output of every command is read."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.lookalikes import start_job, write_program
from ddpdoctor import cli
from ddpdoctor.watch.live.stacks import find_py_spy, take_stacks
from tests.secrets.forms import FORMS, TOKENS, Form
from tests.unmeasured import unmeasured

FORMATS = ("json", "html", "junit", "sarif", "github", "markdown", "prometheus")
IN_PATHS = [form for form in TOKENS if "/" not in form.secret]
RAW = ("logs", "processes")
"""Folders of a run directory that hold what the job itself wrote, byte by byte; docs/run.md says so."""


def sweep(texts: dict[str, str], forms: Iterable[Form] = FORMS) -> list[str]:
    """Return which secret stands in which output, as it is or as JSON, HTML and URLs write it."""
    assert any(texts.values())
    wanted = [(form.id, line) for form in forms for line in form.secret.split("\n")]
    return [
        f"{id} in {name}: …{text[max(0, text.find(line.strip()) - 60) :][:160]}"
        for name, text in texts.items()
        for id, line in wanted
        if line.strip() in text
    ]


def read_files(folder: Path) -> dict[str, str]:
    """Return what was kept, but for what is the job's own."""
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace")
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in RAW and path.stat().st_size
    }


def every_format(folder: Path) -> list[str]:
    folder.mkdir()
    return [word for name in FORMATS for word in ("--format", name, "-o", str(folder / f"out.{name}"))]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Run a command in this process; return what it printed."""
    cli.main(list(arguments))
    printed = capsys.readouterr()
    return {"stdout": printed.out, **({"stderr": printed.err} if printed.err else {})}


def _one_line(form: Form) -> str:
    return "nothing" if "\n" in form.text else form.text


def plant_in_source(folder: Path) -> None:
    """A script with a mistake for each form, whose line holds it as text, as a comment and as a reason."""
    lines = ["import torch.distributed as dist", "dist.init_process_group('gloo')"]
    for number, form in enumerate(FORMS):
        comment = _one_line(form)
        code = f"dist.all_reduce(x, note={form.text!r})"
        again = f"dist.barrier()  # {comment}"
        told = f"dist.barrier()  # ddpdoctor: ignore[COL001] {comment}"
        lines += [f"def f{number}(x):"]
        for each in (code, again, told):
            lines += ["    if dist.get_rank() == 0:", f"        {each}"]
        lines += [f"f{number}(1)"]
    (folder / "train.py").write_text("\n".join(lines) + "\n")
    for form in IN_PATHS:
        place = folder / form.secret
        place.mkdir()
        (place / "script.py").write_text(
            "\n".join(lines[:2]) + "\nif dist.get_rank() == 0:\n    dist.barrier()\n"
        )


def test_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    plant_in_source(source)
    monkeypatch.chdir(source)
    printed = call(capsys, "lint", "-v", ".", *every_format(out))
    shown = json.loads((out / "out.json").read_text())["findings"]
    assert len(shown) > 2 * len(FORMS)
    baseline = tmp_path / "out" / "baseline.json"
    more = call(capsys, "lint", ".", "--write-baseline", str(baseline))
    assert (
        sweep(
            {**printed, **{f"{name} of the baseline": text for name, text in more.items()}, **read_files(out)}
        )
        == []
    )
    again = call(capsys, "lint", ".", "--baseline", str(baseline))
    assert "no issues found" in again["stdout"] or "✓" in again["stdout"], again["stdout"][:400]


def plant_in_log(folder: Path) -> Path:
    lines = []
    for rank, form in enumerate(FORMS):
        prefix = f"[rank{rank}]: "
        secret = IN_PATHS[rank % len(IN_PATHS)].secret
        lines += [
            f"{prefix}Traceback (most recent call last):",
            f'{prefix}  File "/data/{secret}/train.py", line {rank + 1}, in main',
            f"{prefix}    fetch({form.text!r})  # {_one_line(form)}",
            *(
                prefix + line
                for line in f"RuntimeError: NCCL error in: x.cpp:1, internal error, {form.text}".split("\n")
            ),
        ]
    path = folder / "job.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_analyze_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = plant_in_log(tmp_path), tmp_path / "out"
    printed = call(capsys, "analyze", "-v", str(log), *every_format(out))
    assert len(json.loads((out / "out.json").read_text())["evidence"]["exceptions"]) == len(FORMS)
    assert sweep({**printed, **read_files(out)}) == []


def test_analyze_error_files_and_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "attempt_0", tmp_path / "out"
    for rank, form in enumerate(FORMS):
        place = folder / str(rank)
        place.mkdir(parents=True)
        told = {
            "message": f"RuntimeError: {form.text}",
            "extraInfo": {"py_callstack": form.text, "timestamp": "1763690000"},
        }
        (place / "error.json").write_text(json.dumps({"message": told}))
        secret = IN_PATHS[rank % len(IN_PATHS)].secret
        (folder / f"stack-rank{rank}.txt").write_text(
            f"Process 4711: python train.py {_one_line(form)}\nPython v3.11.0\n\n"
            f'Thread 4711 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n'
            f"    step (/data/{secret}/train.py:{rank + 1})\n"
        )
    printed = call(capsys, "analyze", "-v", str(folder), *every_format(out))
    assert sweep({**printed, **read_files(out)}) == []


def test_report_of_an_older_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was kept before all of this was known is rendered without secrets."""
    first, out = tmp_path / "first", tmp_path / "out"
    log = plant_in_log(tmp_path)
    call(capsys, "analyze", str(log), *every_format(first))
    report = json.loads((first / "out.json").read_text())
    text = "\n\n".join(form.text for form in FORMS)
    report["verdict"]["headline"] += text
    report["invocation"] += [form.text for form in FORMS]
    finding = report["findings"][0]
    finding["message"] += text
    finding["details"] = {"more": [form.text for form in FORMS], "api_key_2": "hunter2"}
    finding["fix"].append({"text": text, "command": text, "code": text})
    finding["evidence"].append({"kind": "text", "text": text})
    finding["where"].append(
        {
            "ranks": [0],
            "role": "caller",
            "file": f"/x/{TOKENS[0].secret}.py",
            "line": 1,
            "source": f"f()  # {FORMS[-1].text}",
        }
    )
    old = tmp_path / "old.json"
    old.write_text(json.dumps(report))
    printed = call(capsys, "report", "-v", str(old), *every_format(out))
    compared = call(capsys, "report", str(old), "--compare", str(first / "out.json"))
    assert sweep({**printed, "compared": compared["stdout"], **read_files(out)}) == []


def test_messages_about_what_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for form in IN_PATHS:
        for command in ("lint", "analyze", "report"):
            texts[f"{command} {form.id}"] = "".join(
                call(capsys, command, str(tmp_path / form.secret)).values()
            )
    assert sweep(texts) == []


JOB = """
import json, os, sys
texts = json.load(open(os.environ["PLANTED"]))
rank = int(os.environ["RANK"])
for text in texts[rank::4]:
    print("RuntimeError: NCCL error in: x.cpp:1, internal error,", text, file=sys.stderr, flush=True)
def connect(text):
    raise ConnectionError(text)  # password: hunter2
if rank == 3:
    sys.exit("\\n\\n".join(texts[rank::4]))
try:
    connect("\\n\\n".join(texts[rank::4]))
except ConnectionError as error:
    raise RuntimeError("cannot log in:\\n\\n" + "\\n\\n".join(reversed(texts[rank::4]))) from error
"""


def planted_variables(folder: Path) -> dict[str, str]:
    """The environment of a job: variables that are kept, and variables that must not be."""
    texts = [form.text for form in FORMS]
    path = folder / "planted.json"
    path.write_text(json.dumps(texts))
    kept = {f"NCCL_NOTE_{number}": text for number, text in enumerate(texts)}
    return {
        **unmeasured("DDPDOCTOR_", "PYTHON", "TORCHELASTIC_"),
        **kept,
        "NOTE_PASSWORD_2": "hunter2",
        "PLANTED": str(path),
    }


def test_run(tmp_path: Path) -> None:
    work, out = tmp_path / IN_PATHS[0].secret, tmp_path / "out"
    work.mkdir()
    (work / "train.py").write_text(JOB)
    command = [
        sys.executable,
        "-m",
        "ddpdoctor",
        "run",
        "--nproc",
        "4",
        "--run-dir",
        str(tmp_path / "run"),
        *every_format(out),
    ]
    done = subprocess.run(
        [*command, "train.py", *(word for form in FORMS for word in form.text.split("\0"))],
        cwd=work, env=planted_variables(tmp_path), capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr.decode()[-2000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert len(report["evidence"]["exceptions"]) >= 3, report["findings"]
    assert any("***" in word for process in report["evidence"]["processes"] for word in process["command"])
    # What stands before it is the job's own.
    ours = done.stderr.decode("utf-8", "replace").rpartition("\nddpdoctor ")[2]
    assert sweep({"stderr": ours, **read_files(tmp_path / "run"), **read_files(out)}) == []


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_attach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, out = tmp_path / IN_PATHS[0].secret, tmp_path / "out"
    place.mkdir()
    write_program(place)
    script = place / "train.py"
    script.write_text(
        script.read_text().replace("dist.all_reduce(None)", "dist.all_reduce(None)  # password: hunter2")
    )
    variables = {f"NCCL_NOTE_{n}": form.text for n, form in enumerate(FORMS)}
    with start_job(place, 2, {1: "read"}, world=None, **variables) as job:
        if not take_stacks([job[0].pid])[job[0].pid].frames:
            pytest.skip("py-spy has no permission to read processes here")
        printed = call(
            capsys, "attach", str(job[0].pid), "--run-dir", str(tmp_path / "kept"), *every_format(out)
        )
    assert "COL009" in printed["stdout"]
    assert sweep({**printed, **read_files(out), **read_files(tmp_path / "kept")}) == []


MODEL = """
import json, os
def make():
    raise RuntimeError("\\n\\n".join(json.load(open(os.environ["PLANTED"]))[:40]))  # password: hunter2
"""


def test_check(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "model.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "ddpdoctor", "check", "--nproc", "2", "--only", "facts,ddp", "--model", "model.py:make", *every_format(out)],
        cwd=tmp_path, env=planted_variables(tmp_path), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "cannot" in done.stdout or "RuntimeError" in done.stdout, done.stdout + done.stderr
    assert sweep({"stdout": done.stdout, **read_files(out)}) == []


@pytest.mark.long
def test_large_reports_are_cleaned_in_time() -> None:
    """Linear in the text: 16,384 ranks with variables, stacks and findings of their own."""
    from ddpdoctor.cli.outputs import clean_report
    from tests.report.extremes import sample_large

    report = sample_large()
    began = time.process_time()
    assert clean_report(dataclasses.replace(report)) == report
    assert time.process_time() - began < 30  # 1.5 s where nothing else runs
