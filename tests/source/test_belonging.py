"""Files that mention no distributed library are read where one that does imports them, from where Python would."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.source.gather import read_sources
from tests.lint.judging import RULES

TRAINS = "import torch.distributed as dist\n{}\ndist.barrier()\n"
PLAIN = "def save(path):\n    open(path, 'w').close()\n"


@pytest.mark.parametrize(
    ("script", "line", "read", "passed_over"),
    [
        ("train.py", "import tools", ["tools.py", "src/tools.py"], ["tool.py"]),
        ("train.py", "from lib.tools import save", ["lib/tools.py", "src/lib/tools.py"], ["tools.py"]),
        ("train.py", "import logging", ["logging.py"], ["lib/logging.py"]),
        ("lib/train.py", "import logging.handlers", ["lib/logging/handlers.py"], ["logging/handlers.py"]),
        ("lib/train.py", "from .tools import save", ["lib/tools.py", "lib/__init__.py"], ["tools.py", "src/tools.py"]),
        ("lib/train.py", "from . import tools", ["lib/tools.py"], ["tools.py", "src/tools.py"]),
        ("lib/a/train.py", "from ..tools import save", ["lib/tools.py"], ["lib/a/tools.py", "tools.py"]),
        ("lib/a/__init__.py", "from .tools import save", ["lib/a/tools.py"], ["lib/tools.py", "tools.py"]),
    ],
)  # fmt: skip
def test_what_is_imported_is_read(
    script: str,
    line: str,
    read: list[str],
    passed_over: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in {**dict.fromkeys([*read, *passed_over], PLAIN), script: TRAINS.format(line)}.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    rows = {row.name.removeprefix("project/"): row.unrelated for row in read_sources(["project"], RULES)}
    assert rows == {script: False, **dict.fromkeys(read, False), **dict.fromkeys(passed_over, True)}
    absolute = read_sources([str(tmp_path / "project")], RULES)
    assert sorted(row.unrelated for row in absolute) == sorted(rows.values())
    monkeypatch.chdir("/")
    absolute = read_sources([str(tmp_path / "project")], RULES)
    assert sorted(row.unrelated for row in absolute) == sorted(rows.values())
