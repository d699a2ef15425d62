"""Which files are read, and that none of them can stop the reader."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ddpdoctor.source.files.enclosing import MOST_BYTES
from ddpdoctor.source.files.reading import find_files
from ddpdoctor.source.gather import read_sources
from tests.lint.judging import RULES


def put(folder: Path, *names: str, text: str = "import torch\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_directory_is_read_as_git_sees_it(tmp_path: Path) -> None:
    put(
        tmp_path,
        "a.py",
        "old.py",
        "pkg/b.py",
        "pkg/gen/c.py",
        "build/d.py",
        ".hidden/e.py",
        "n.ipynb",
        "keep/old.py",
    )
    put(tmp_path, "venv/pyvenv.cfg", "venv/lib/f.py", "__pycache__/g.py", "notes.txt")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("# made\n/build/\nold.py\n!keep/old.py\n")
    (tmp_path / "pkg" / ".gitignore").write_text("gen\n")
    found = [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path)]
    assert found == ["a.py", "keep/old.py", "n.ipynb", "pkg/b.py"]
    assert [path.name for path in find_files(tmp_path / "pkg")] == ["b.py"]


@pytest.mark.parametrize("before", ["x", "é", "日本", "\U0001f600"])
def test_column_counts_characters_and_not_bytes(tmp_path: Path, before: str) -> None:
    line = f'if dist.get_rank(): s="{before}"; dist.barrier()'
    (tmp_path / "t.py").write_text(f"import torch.distributed as dist\n{line}\n", encoding="utf-8")
    (file,) = read_sources([str(tmp_path / "t.py")], RULES)
    (uneven,) = file.uneven
    assert uneven.call.column == line.index("dist.barrier") + 1


def test_notebook_says_cell_and_line(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# text"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch.distributed as dist"]},
        {"cell_type": "code", "source": "this is no python"},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": "!ls\nif dist.get_rank() == 0:\n    dist.barrier()"},
    ]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    (file,) = read_sources([str(path)], RULES)
    assert file.problem is None
    (uneven,) = file.uneven
    assert (uneven.call.cell, uneven.call.line, uneven.call.column) == (5, 3, 5)
    assert (uneven.guard.cell, uneven.guard.line) == (5, 2)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("broken.py", b"import torch\nif x\n", "line 2"),
        ("nulls.py", b"import torch\n\0\0\n", "null bytes"),
        ("large.py", b"import torch\n" + b"#" * MOST_BYTES, "larger than"),
        ("deep.py", b"import torch\nx = " + b"-" * 90_000 + b"1\n", ""),
        ("nested.py", b"import torch\nx = " + b"[" * 300 + b"]" * 300 + b"\n", "parentheses"),
        ("long.py", b"import torch\nx = 1" + b" + 1" * 20_000 + b"\n", ""),
        ("list.ipynb", b'["torch"]', "notebook"),
        ("text.ipynb", b"torch", "Expecting"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    (file,) = read_sources([str(tmp_path / name)], RULES)
    assert file.problem is not None
    assert words in file.problem
    assert file.uneven == ()


def test_standard_library_gives_nothing() -> None:
    folder = Path(ast.__file__).parent
    files = read_sources(
        [str(folder / name) for name in ("asyncio", "concurrent", "multiprocessing", "ast.py")], RULES
    )
    assert len(files) > 50
    assert [each for each in files if each.problem or each.uneven] == []
