"""The hook for pre-commit, started as pre-commit does: its entry with the names of changed files, from the top."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HOOKS = Path(__file__).parents[1] / ".pre-commit-hooks.yaml"
WRONG = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
LIMIT_S = 120


def read_hook() -> dict[str, str]:
    """Return the keys of the only hook; the file is flat, and a parser of YAML no dependency."""
    return dict(re.findall(r"^[-\s]\s(\w+): (.+)$", HOOKS.read_text(), flags=re.MULTILINE))


def commit(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*shlex.split(read_hook()["entry"]), *names],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_hook_has_what_pre_commit_requires() -> None:
    hook = read_hook()
    assert {"id", "name", "entry", "language"} <= hook.keys()
    assert hook["types_or"] == "[python, jupyter]"


@pytest.mark.parametrize(
    ("names", "code"),
    [(["src/right.py"], 0), (["src/right.py", "src/wrong.py"], 1), (["old/wrong.py"], 0)],
)
def test_hook_fails_where_a_changed_file_is_wrong(tmp_path: Path, names: list[str], code: int) -> None:
    for folder in ("src", "old"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "wrong.py").write_text(WRONG)
    (tmp_path / "src/right.py").write_text("import torch\n")
    (tmp_path / "pyproject.toml").write_text('[tool.ddpdoctor.lint]\nexclude = ["old"]\n')
    done = commit(tmp_path, *names)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("src/wrong.py:3:5 COL002" in done.stdout) == (code == 1)
