"""No file makes ``lint`` fail: odd and broken ones are read or passed over with a reason, and right ones give no alarm."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest
import torch

from ddpdoctor.source.files.reading import find_files, parse_script, read_script
from ddpdoctor.source.gather import judge_scripts, read_sources
from tests.lint.judging import EXAMPLES, RULES

HEAD = "import torch\nimport torch.distributed as dist\n"
GUARDED = "if dist.get_rank() == 0:\n    dist.barrier()\n"
SAMPLED = 40
"""Files of the standard library and of torch, the same ones each time."""

READ = {
    "latin-1": b"# -*- coding: latin-1 -*-\n" + HEAD.encode() + b"x = '\xe9'\n" + GUARDED.encode(),
    "byte order mark": b"\xef\xbb\xbf" + HEAD.encode() + GUARDED.encode(),
    "old Macintosh lines": (HEAD + GUARDED).replace("\n", "\r").encode(),
    "form feeds and separators": (HEAD + "\x0c\nx = '\u2028'\n" + GUARDED).encode(),
    "many tests": (HEAD + "x = 1\n" * 5 + "if x:\n    pass\n" * 2000 + GUARDED).encode(),
    "deep tests": (
        HEAD + "".join(" " * i + f"if x{i}:\n" for i in range(90)) + " " * 90 + "pass\n" + GUARDED
    ).encode(),
    "a chain of functions": (
        HEAD + "def f0():\n    dist.barrier()\n"
        + "".join(f"def f{i}():\n    f{i - 1}()\n    f{i - 1}()\n" for i in range(1, 40))
        + "f39()\n" + GUARDED
    ).encode(),
    "circles": (
        HEAD + "a = b\nb = a\nclass A(A): pass\ndef f(): return f()\nif f() or a: A()\n" + GUARDED
    ).encode(),
    "a long line": (HEAD + "x = [" + "1," * 20_000 + "]\n" + GUARDED).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_odd_file_is_read(name: str) -> None:
    (row,) = judge_scripts([parse_script(READ[name], "train.py")], RULES)
    assert row.problem is None
    (found,) = row.uneven
    assert found.call.text == "dist.barrier()"


PASSED_OVER = {
    "no Python": b"import torch\nif x\n",
    "null bytes": b"import torch\nx = '\0'\n",
    "unknown encoding": b"# -*- coding: nosuch -*-\nimport torch\n",
    "broken encoding": b"import torch\nx = '\xff\xfe'\n",
    "mixed tabs": b"import torch\nif x:\n\ty\n        z\n",
    "parentheses": b"import torch\nx = " + b"(" * 300 + b"1" + b")" * 300,
    "deep attributes": b"import torch\nx = a" + b".b" * 5000,
    "deep sums": b"import torch\nx = " + b"+".join([b"1"] * 9000),
    "deep sums that can be parsed": b"import torch\nx = " + b"+".join([b"1"] * 900),
    "many elif": b"import torch\nif x: y\n" + b"elif x: y\n" * 3000,
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_file_that_cannot_be_read_has_a_reason_and_hides_no_other(name: str) -> None:
    scripts = [parse_script(PASSED_OVER[name], "odd.py"), parse_script((HEAD + GUARDED).encode(), "train.py")]
    odd, train = judge_scripts(scripts, RULES)
    assert odd.problem or name == "deep sums that can be parsed"
    assert "None" not in (odd.problem or "")
    assert odd.uneven == ()
    assert len(train.uneven) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cells": 1}', "[" * 100_000, '{"cells": [5, {"source": 1}]}']
)
def test_broken_notebook_is_no_error_of_ours(text: str) -> None:
    (row,) = judge_scripts([parse_script(f"{text}torch".encode(), "a.ipynb", notebook=True)], RULES)
    assert row.uneven == ()


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "package.py").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "big.py").write_bytes(b"import torch\n" * 1_000_000)
    (tmp_path / "train.py").write_text(HEAD + GUARDED)
    rows = {Path(row.name).name: row for row in read_sources([str(tmp_path)], RULES)}
    assert set(rows) == {"big.py", "train.py"}
    assert rows["big.py"].problem == "larger than 4 MiB"
    assert len(rows["train.py"].uneven) == 1


def test_sample_of_the_standard_library_and_torch_gives_no_alarm() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    package = Path(torch.__file__).parent
    files = [path for path in sorted(library.glob("*.py")) if path.stat().st_size < 60_000]
    files += [path for name in ("distributed", "nn", "optim") for path in find_files(package / name)]
    sample = random.Random(6).sample(files, SAMPLED)
    rows = judge_scripts([read_script(path, str(path), whatever=True) for path in sample], RULES)
    assert [(row.name, row.problem) for row in rows if row.problem] == []
    assert [(row.name, row.uneven, row.facts) for row in rows if row.uneven or row.facts] == []


def test_cut_and_shuffled_programs_raise_nothing() -> None:
    """A file that is being edited is broken most of the time."""
    choose = random.Random(7)
    programs = [text for pair in EXAMPLES.values() for text in pair]
    read = 0
    for number in range(150):
        lines = choose.choice(programs).splitlines()
        for _ in range(choose.randrange(1, 4)):
            place = choose.randrange(len(lines))
            lines[place : place + 1] = choose.choice(
                [[], [lines[place]] * 2, [choose.choice(lines)], ["    pass"]]
            )
            lines = lines or ["import torch"]
        text = "\n".join(lines)[: None if number % 3 else choose.randrange(1, 400)]
        (row,) = judge_scripts([parse_script(text.encode(), "train.py")], RULES)
        read += row.problem is None
    assert read > 50


REBOUND = {
    "a table": "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\ndist.init_process_group('gloo')\ntable = read()\n"
    + "".join(f"table = table.step{i}(table)\n" for i in range(60))
    + "loader = DataLoader(TensorDataset(table))\nmodel = DDP(torch.nn.Linear(2, 2))\n"
    "for x in loader:\n    model(x).sum().backward()\n",
    "a sum": "total = 0\n"
    + "".join(f"total = total + part{i}\n" for i in range(100))
    + "if total > best:\n    dist.barrier()\n",
    "functions in circles": "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    + "".join(
        f"def f{i}(x):\n" + "".join(f"    if c{j}:\n        x = f{j}(x)\n" for j in range(6) if j != i) + "    return x\n"
        for i in range(6)
    )
    + "model = DDP(f0(torch.nn.Linear(2, 2)))\nfor x in f1(data):\n    model(x).sum().backward()\n",
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", REBOUND)
def test_value_with_more_ways_than_can_be_gone_is_followed_once(name: str) -> None:
    """Each value of a variable that is bound again and again leads to all of them: way by way it would take hours."""
    (row,) = judge_scripts([parse_script((HEAD + REBOUND[name]).encode(), "train.py")], RULES)
    assert [fact.rule for fact in row.facts] == (["loader-unsharded"] if name == "a table" else [])
    assert row.skipped == ()  # no rule was stopped for its steps
