"""What names mean over several files: classes of objects, inherited methods, names that a module only passes on."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence.sources import SourceFile
from tests.lint.judging import HEAD, judge, read

TRAINER = """
class Base:
    def sync(self):
        dist.barrier()
class Trainer(Base):
    def __init__(self, saver=None):
        self.saver = saver
    def save(self):
        super().sync()
    def __call__(self):
        self.sync()
def make() -> Trainer:
    return Trainer()
"""
WAYS = {
    "parameter by annotation": "def run(t: Trainer):\n    if dist.get_rank() == 0:\n        t.save()\n",
    "parameter by a text": "def run(t: 'Trainer | None'):\n    if dist.get_rank() == 0:\n        t.save()\n",
    "parameter by its callers": "def run(t):\n    if dist.get_rank() == 0:\n        t.save()\nrun(Trainer())\n",
    "inherited method": "t = Trainer()\nif dist.get_rank() == 0:\n    t.sync()\n",
    "object that is called": "t = Trainer()\nif dist.get_rank() == 0:\n    t()\n",
    "made at once": "if dist.get_rank() == 0:\n    Trainer().save()\n",
    "made by a function": "t = make()\nif dist.get_rank() == 0:\n    t.save()\n",
    "kept by another object": (
        "class Job:\n    def __init__(self, t):\n        self.t = t\n    def run(self):\n"
        "        if dist.get_rank() == 0:\n            self.t.save()\nJob(Trainer()).run()\n"
    ),
}
UNKNOWN = {
    "no annotation, no caller": "def run(t):\n    if dist.get_rank() == 0:\n        t.save()\n",
    "callers give two classes": (
        "class Other:\n    def save(self):\n        pass\ndef run(t):\n    if dist.get_rank() == 0:\n"
        "        t.save()\nrun(Trainer())\nrun(Other())\n"
    ),
    "one caller gives what is not known": (
        "def run(t):\n    if dist.get_rank() == 0:\n        t.save()\nrun(Trainer())\nrun(args.trainer)\n"
    ),
}
START = "dist.init_process_group('nccl')\n"


def codes(files: dict[str, str]) -> set[str]:
    """Return the codes of what is found in files."""
    rows: tuple[SourceFile, ...] = read(files)
    return {each.code for each in judge(rows) if each.code == "COL002"}


@pytest.mark.parametrize("text", WAYS.values(), ids=WAYS)
def test_call_is_followed_to_the_method(text: str) -> None:
    whole = f"{HEAD}{TRAINER}{START}{text}"
    assert codes({"train.py": whole}) == {"COL002"}
    assert codes({"train.py": whole.replace("if dist.get_rank() == 0:", "if True:")}) == set()


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_nothing_is_told_of_a_method_that_may_be_another(text: str) -> None:
    assert codes({"train.py": f"{HEAD}{TRAINER}{START}{text}"}) == set()


CALL = "dist.init_process_group('nccl')\nif dist.get_rank() == 0:\n    {call}\n"
SYNC = f"{HEAD}def sync():\n    dist.barrier()\n"
IMPORTED = {
    "through a package": (
        {"pkg/__init__.py": "import torch\nfrom .engine import sync\n", "pkg/engine.py": SYNC},
        "from pkg import sync",
        "sync()",
    ),
    "through two packages": (
        {
            "pkg/__init__.py": "import torch\nfrom .inner import *\n",
            "pkg/inner/__init__.py": "import torch\nfrom .engine import sync\n",
            "pkg/inner/engine.py": SYNC,
        },
        "import pkg",
        "pkg.sync()",
    ),
    "all names of a module": ({"engine.py": SYNC}, "from engine import *", "sync()"),
    "torch's own, passed on": (
        {"common.py": "import torch\nfrom torch import distributed as tdist\n"},
        "import common",
        "common.tdist.barrier()",
    ),
    "a file of the same name elsewhere": (
        {"engine.py": SYNC, "other/engine.py": "import torch\ndef sync():\n    pass\n"},
        "from engine import sync",
        "sync()",
    ),
}


@pytest.mark.parametrize(("others", "line", "call"), IMPORTED.values(), ids=IMPORTED)
def test_name_is_followed_to_the_file_that_defines_it(others: dict[str, str], line: str, call: str) -> None:
    script = f"{HEAD}{line}\n{CALL.format(call=call)}"
    assert codes({"train.py": script, **others}) == {"COL002"}


def test_relative_import_means_the_file_beside_it() -> None:
    files = {
        "a/train.py": f"{HEAD}from .engine import sync\n{CALL.format(call='sync()')}",
        "a/engine.py": "import torch\ndef sync():\n    pass\n",
        "b/engine.py": SYNC,
    }
    assert codes(files) == set()
    files["a/engine.py"], files["b/engine.py"] = files["b/engine.py"], files["a/engine.py"]
    assert codes(files) == {"COL002"}


def test_package_imports_what_stands_beside_it_and_not_its_own_module_of_that_name() -> None:
    files = {
        "engine/__init__.py": "import torch\nfrom .engine import sync\n",
        "engine/engine.py": SYNC,
        "engine/launch.py": f"{HEAD}import engine\n{CALL.format(call='engine.sync()')}",
        "engine/other.py": "import torch\n",
    }
    assert codes(files) == {"COL002"}
    files["engine/engine.py"] = "import torch\ndef sync():\n    pass\n"
    assert codes(files) == set()


def test_modules_that_import_each_other_in_circles_end() -> None:
    files = {
        "a.py": f"{HEAD}from b import *\nfrom b import sync\n{CALL.format(call='sync()')}",
        "b.py": "import torch\nfrom a import *\nfrom a import sync\n",
    }
    assert codes(files) == set()


RANKS = """
import torch.distributed as tdist
_rank, _world = 0, 1
_first = {initial}
def start():
    global _rank, _world, _first
    tdist.init_process_group("nccl")
    _rank, _world = tdist.get_rank(), tdist.get_world_size()
    _first = {value}
def is_first():
    return {asked}
def total(x):
    tdist.all_reduce(x)
"""
TRAINING = """
import comm
class Trainer:
    def __init__(self, logs):
        self.logs = logs
    def step(self, x):
        if {test} and self.logs:
            comm.total(x)
comm.start()
trainer = Trainer(logs=comm.is_first())
trainer.step(torch.zeros(1))
"""


@pytest.mark.parametrize(
    ("initial", "value", "asked", "found"),
    [
        ("None", "None", "_rank == 0", True),
        ("False", "_rank == 0", "_first", True),
        ("False", "tdist.get_rank() == 0", "_first", True),
        ("None", "None", "_world == 1", False),
        ("False", "_world > 1", "_first", False),
        ("False", "choose()", "_first", False),
    ],
)
def test_variable_of_a_module_is_what_a_function_sets_it_to(
    initial: str, value: str, asked: str, found: bool
) -> None:
    others = {"comm.py": f"import torch\n{RANKS.format(initial=initial, value=value, asked=asked)}"}
    script = f"{HEAD}{TRAINING.format(test='torch.is_grad_enabled()')}"
    assert codes({"train.py": script, **others}) == ({"COL002"} if found else set())
