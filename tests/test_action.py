"""action.yml, problem-matcher.json and the Dockerfile: their scripts are run, in an environment of their own."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.report.sarif import find_problems
from tests.test_without_torch import list_needed
from tests.unmeasured import unmeasured

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
LIMIT_S = 200
WRONG = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which pip needs no index: what it would fetch is on the path, as this environment has it."""
    folder = tmp_path_factory.mktemp("packages")
    names = list_needed(["hatchling", *(importlib.metadata.requires("ddpdoctor") or ())], set())
    for name in names:
        for path in importlib.metadata.files(name) or ():
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(path.locate())).parents[len(path.parts) - 1] / top)
    assert not (folder / "torch").exists()
    return {
        **{name: value for name, value in unmeasured().items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")},
        "PYTHONPATH": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads the variable the other way round than the option
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


class Runner:
    """What GitHub's runner does for the `run` steps of a composite action."""

    def __init__(self, folder: Path, registry: Mapping[str, str]) -> None:
        self.temp, self.work = folder / "temp", folder / "a checkout"
        self.temp.mkdir()
        self.work.mkdir()
        self.summary, self.output = folder / "summary.md", folder / "output"
        self.variables = {
            **registry,
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_WORKSPACE": str(self.work),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
        }

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        values = {key: each["default"] for key, each in ACTION["inputs"].items()}
        values |= {key.replace("_", "-"): value for key, value in inputs.items()}
        given = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
            for key, text in step["env"].items()
        }
        script = self.temp / "step.sh"
        script.write_text(step["run"])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.work,
            env={**self.variables, **given},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, registry: dict[str, str]) -> Runner:
    runner = Runner(tmp_path_factory.mktemp("runner"), registry)
    done = runner.run("Install ddpdoctor", python=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    return runner


@pytest.fixture
def runner(installed: Runner) -> Runner:
    for file in (installed.summary, installed.output, *installed.work.iterdir()):
        file.unlink(missing_ok=True)
    return installed


def test_no_script_holds_text_that_others_wrote() -> None:
    assert [name for name, step in STEPS.items() if "${{" in step.get("run", "")] == []
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


def test_wrong_program_fails_the_step_and_leaves_what_is_uploaded(runner: Runner) -> None:
    (runner.work / "wrong.py").write_text(WRONG)
    done = runner.run("Read the programs")
    assert done.returncode == 1, done.stderr
    assert "::error file=wrong.py,line=3,col=5,title=COL002" in done.stdout
    assert runner.summary.read_text().startswith("## ddpdoctor ✖ 1 error in 1 file\n")
    key, _, path = runner.output.read_text().strip().partition("=")
    log = Path(path).read_text()
    assert (key, find_problems(log)) == ("sarif", [])
    assert json.loads(log)["runs"][0]["results"][0]["ruleId"] == "COL002"
    upload = STEPS["Upload to code scanning"]
    assert upload["with"]["sarif_file"] == "${{ steps.lint.outputs.sarif }}"
    assert "always()" in upload["if"]


def test_paths_and_options_are_one_a_line_and_no_words_of_a_shell(runner: Runner) -> None:
    (runner.work / "a wrong one.py").write_text(WRONG)
    (runner.work / "right.py").write_text("import torch\n")
    done = runner.run("Read the programs", paths="right.py\n\na wrong one.py\n", options="--ignore=COL002")
    assert done.returncode == 0, done.stderr
    assert runner.run("Read the programs", paths="a wrong one.py").returncode == 1
    assert runner.run("Read the programs", paths="$(touch injected)").returncode == 2
    assert not (runner.work / "injected").exists()


def test_wrong_option_uploads_nothing(runner: Runner) -> None:
    done = runner.run("Read the programs", options="--no-such-option")
    assert done.returncode not in (0, 1)
    assert "--no-such-option" in done.stderr
    assert not runner.output.exists()


def test_problem_matcher_reads_what_lint_prints(runner: Runner) -> None:
    (matcher,) = json.loads((ROOT / "problem-matcher.json").read_text())["problemMatcher"]
    first, second = matcher["pattern"]
    (runner.work / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [str(runner.temp / "ddpdoctor/bin/ddpdoctor"), "lint", "."],
        cwd=runner.work, env={**runner.variables, "COLUMNS": "500"}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    (number,) = [number for number, line in enumerate(lines) if re.search(first["regexp"], line)]
    found = re.search(first["regexp"], lines[number])
    assert found is not None
    read = {key: found[group] for key, group in first.items() if key != "regexp"}
    assert read == {"file": "wrong.py", "line": "3", "column": "5", "code": "COL002", "severity": "error"}
    said = re.search(second["regexp"], lines[number + 1])
    assert said is not None
    assert said[second["message"]].startswith("barrier at wrong.py:3 is called only where")
    assert said[second["message"]].endswith("never reach it.")


def read_dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile: name and the rest; lines that end in a backslash go on."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def test_dockerfile_copies_what_is_there_and_ends_as_no_root() -> None:
    instructions = read_dockerfile()
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions} <= known
    assert instructions[0][0] == "FROM"
    stages = [rest.split() for name, rest in instructions if name == "FROM"]
    assert all(re.fullmatch(r"[\w./]+:\d[\w.-]+", words[0]) for words in stages), "an image without a version"
    named = {words[2] for words in stages if len(words) == 3}
    kept = [
        line[1:].lstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for words in (shlex.split(rest) for name, rest in instructions if name == "COPY"):
        if words[0].startswith("--from="):
            assert words[0][len("--from=") :] in named
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, each) for each in kept), f".dockerignore keeps {source} out"
    last: dict[str, str] = dict(instructions)
    assert not last["USER"].startswith(("0", "root"))
    for name in ("ENTRYPOINT", "CMD"):  # the form without a shell: signals reach ddpdoctor
        assert all(isinstance(word, str) for word in json.loads(last[name]))


def test_steps_of_the_dockerfile_make_an_environment_that_works(
    tmp_path: Path, registry: dict[str, str]
) -> None:
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    variables = {**registry, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    stage: list[tuple[str, str]] = []
    for instruction in read_dockerfile()[1:]:
        if instruction[0] == "FROM":
            break
        stage.append(instruction)
    for name, rest in stage:
        if name == "COPY":
            *sources, place = shlex.split(rest)
            for each in sources:
                (source / (each if place == "./" else place)).symlink_to(ROOT / each)
        elif name == "ARG":
            key, _, value = rest.partition("=")
            variables[key] = value
        elif name == "RUN":
            script = rest.replace("/opt/ddpdoctor", str(target))
            done = subprocess.run(
                ["sh", "-c", script],
                cwd=source,
                env=variables,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    entry: list[str] = json.loads(dict(read_dockerfile())["ENTRYPOINT"])
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [str(target / "bin" / entry[0]), "lint", "wrong.py"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "COL002" in done.stdout


def test_context_of_a_build_holds_no_environment() -> None:
    lines: list[Any] = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
