"""An environment that has what the wheel declares, and no torch: what works there, and what says why it does not."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.unmeasured import unmeasured

ROOT = Path(__file__).parents[1]
GATHER = ROOT / "tests" / "gather"
LIMIT_S = 120
GUARDED = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
Run = Callable[..., subprocess.CompletedProcess[str]]


def list_needed(needs: Iterable[str], found: set[str]) -> set[str]:
    """Return the distributions that are asked for, with whatever these need, without extras."""
    for need in needs:
        text, _, marker = need.partition(";")
        if "extra" in marker or ("python_version" in marker and sys.version_info >= (3, 11)):
            continue
        name = re.split(r"[^\w.-]", text.strip())[0]
        if name not in found:
            found |= {name, *list_needed(importlib.metadata.requires(name) or (), found | {name})}
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment made from the wheel, beside links to what this one has of its declared dependencies."""
    place = tmp_path_factory.mktemp("without-torch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "env")], check=True)
    variables = {"base": str(place / "env"), "platbase": str(place / "env")}
    site = Path(sysconfig.get_path("purelib", "venv", variables))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(place), str(ROOT)], check=True, timeout=LIMIT_S)
    (file,) = place.glob("ddpdoctor-*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(place / "env/bin/python"), "install", "-q"]
    subprocess.run([*install, "--no-deps", "--no-index", str(file)], check=True, timeout=LIMIT_S)
    with zipfile.ZipFile(file) as wheel:
        (metadata,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        needs = Parser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist", [])
    for name in list_needed(needs, set()):
        for path in importlib.metadata.files(name) or ():
            if path.parts[-2:-1] == ("bin",):
                (place / "env/bin" / path.name).symlink_to(Path(str(path.locate())).resolve())
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(path.locate())).parents[len(path.parts) - 1] / top)
    return place / "env"


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    (tmp_path / "train.py").write_text(GUARDED)
    (tmp_path / "train.log").write_text((GATHER / "aftermath" / "key.txt").read_text())
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in unmeasured().items() if name not in dropped}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(environment / "bin" / "ddpdoctor"), *arguments],
            cwd=tmp_path,
            env={**variables, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    return call


def test_environment_has_no_torch(environment: Path) -> None:
    code = "import importlib.util as u, ddpdoctor; print(u.find_spec('torch'), ddpdoctor.__file__)"
    done = subprocess.run(
        [str(environment / "bin/python"), "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"None {environment}")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("lint", "train.py"), 1, "COL002"),
        (("analyze", "train.log"), 1, "ERR001"),
        (("analyze", str(GATHER / "recorder" / "missing")), 0, "COL002"),
        (("collect", "train.log", "--out", "node.tar.gz"), 0, ""),
        pytest.param(("demo", "incident"), 0, "BKD010", marks=pytest.mark.long),
        (("--version", "-v"), 0, "not installed"),
    ],
    ids=["lint", "log", "dumps", "collect", "incident", "version"],
)
def test_command_works_without_torch(run: Run, arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout
    assert "Traceback" not in done.stderr
    assert "No module named" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--nproc", "2"),
        ("run", "--nproc", "2", "train.py"),
        ("demo", "hidden-exception"),
    ],
    ids=" ".join,
)
def test_command_that_needs_torch_says_what_to_type(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    before = sorted(tmp_path.iterdir())
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("ddpdoctor: torch is not installed for this Python\n")
    assert "python -m pip install torch" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_command_of_another_python_is_run_all_the_same(run: Run) -> None:
    done = run("run", "--", sys.executable, "-c", "print('trained')")
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_report_is_rendered_and_functions_work(run: Run, environment: Path, tmp_path: Path) -> None:
    run("analyze", "train.log", "--json", "report.json")
    assert run("report", "report.json", "--html", "report.html").returncode == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    code = (
        "import ddpdoctor, json\n"
        "found = [ddpdoctor.lint('train.py'), ddpdoctor.analyze('train.log'), ddpdoctor.load_report('report.json')]\n"
        "print(json.dumps([each.findings[0].code for each in found]))\n"
        "try:\n    ddpdoctor.check(2)\nexcept ddpdoctor.DoctorError as problem:\n    print(problem.message)\n"
    )
    done = subprocess.run(
        [str(environment / "bin/python"), "-c", code],
        cwd=tmp_path,
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    codes, message = done.stdout.splitlines()
    assert json.loads(codes) == ["COL002", "ERR001", "ERR001"], done.stderr
    assert message == "torch is not installed for this Python"


def list_installed(environment: Path) -> Iterator[str]:
    site = next(environment.glob("lib/python*/site-packages"))
    yield from (path.name.lower() for path in site.iterdir())


def test_environment_has_what_the_wheel_declares_and_no_more(environment: Path) -> None:
    names = set(list_installed(environment))
    assert {"rich", "jinja2", "psutil", "ddpdoctor", "ddpdoctor_checks"} <= names
    assert not names & {"torch", "numpy", "pytest"}
