"""The files of one program, as far as they lie beside the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.cli.running.foreseeing import find_script
from ddpdoctor.source.own_imports import read_program
from ddpdoctor.watch.commandline import Split


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_imports_are_followed_below_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lay(
        tmp_path,
        {
            "train.py": "import os, pkg.loop\nfrom helpers import total\ndef f():\n    import late\n",
            "helpers.py": "from pkg import data\n",
            "late.py": "import train\n",
            "pkg/__init__.py": "",
            "pkg/loop.py": "from . import model\nfrom .deep.net import Net\n",
            "pkg/model.py": "from .. import helpers\n",
            "pkg/data.py": "",
            "pkg/deep/__init__.py": "from ..other import x\n",
            "pkg/deep/net.py": "import broken\n",
            "pkg/other.py": "",
            "broken.py": "if\n",
            "unused.py": "",
        },
    )
    read = read_program(Path("train.py"), Path())
    names = {script.name for script in read}
    assert names == {
        "train.py", "helpers.py", "late.py", "broken.py", "pkg/__init__.py", "pkg/loop.py", "pkg/model.py", "pkg/data.py",
        "pkg/deep/__init__.py", "pkg/deep/net.py", "pkg/other.py",
    }  # fmt: skip
    assert [script.name for script in read if script.problem] == ["broken.py"]


def test_script_is_found_in_what_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lay(tmp_path, {"src/train.py": "", "pkg/mod.py": "", "pkg/app/__main__.py": "", "data.bin": ""})
    src = (Path("src/train.py"), Path("src"))
    assert find_script(Split((), (), ("src/train.py", "--lr", "1"))) == src
    command = Split((), (), ("accelerate", "launch", "none.py", "src/train.py"), is_command=True)
    assert find_script(command) == src
    shell = Split((), (), ("bash", "-c", f"{'x' * 300}.py", "nul\0.py", "src/train.py"), is_command=True)
    assert find_script(shell) == src
    assert find_script(Split((), ("-m",), ("pkg.mod",))) == (tmp_path / "pkg/mod.py", tmp_path)
    assert find_script(Split((), ("-m",), ("pkg.app",))) == (tmp_path / "pkg/app/__main__.py", tmp_path)
    assert find_script(Split((), ("-m",), ("torch.distributed.run",))) is None
    assert find_script(Split((), (), ("data.bin",))) is None
    assert find_script(Split((), (), ("none.py",))) is None
