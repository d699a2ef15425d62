"""What the methods of a class do whose objects make ranks, where no script that is read makes one: trainers of libraries."""

from __future__ import annotations

import pytest

from ddpdoctor.judge import QUESTION
from tests.lint.judging import find_marked, judge, lines_of, lint, read

HEAD = "import torch\nfrom pathlib import Path\nfrom accelerate import Accelerator\n"
TRAINER = """\
class Trainer:
    def __init__(self, model, optimizer, folder="results"):
        self.accelerator = Accelerator({made})
        self.folder = Path(folder)
        self.step = 0
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
    def save(self, number):
        if not self.accelerator.{first}:
            return
        saved = {{"step": self.step, "model": self.model.state_dict(), "opt": self.optimizer.state_dict()}}
        torch.save(saved, str(self.folder / f"{name}.pt"))
    {decorator}
    def load(self, number):
        {before}
        saved = torch.load(str(self.folder / f"{name}.pt"){map})  # here
        self.accelerator.unwrap_model(self.model).load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["opt"])
        self.step = saved["step"]
"""
PARTS = {
    "made": "",
    "first": "is_main_process",
    "name": "model-{number}",
    "decorator": "# loads",
    "before": "pass",
    "map": "",
}


def write(text: str = TRAINER, **parts: str) -> str:
    return text.format(**PARTS | parts)


def ask(text: str, head: str = HEAD) -> list[str]:
    return [each.code for each in judge(read({"trainer.py": head + text}), questions=True)]


@pytest.mark.wrong
@pytest.mark.parametrize(
    "parts", [{}, {"before": "assert number > 0"}, {"made": "mixed_precision='fp16'"}, {"made": "cpu=False"}]
)
def test_trainer_that_loads_onto_the_gpu_of_the_first_rank(parts: dict[str, str]) -> None:
    (found,) = lint(text := write(**parts), head=HEAD)
    assert (found.code, found.severity) == ("CKP003", "warning")
    assert lines_of([found], "CKP003") == find_marked(text, HEAD)


@pytest.mark.wrong
def test_trainer_that_makes_its_group_in_a_method() -> None:
    head = "import os\nimport torch\nimport torch.distributed as dist\n"
    text = write().replace("self.accelerator = Accelerator()", "self._join()")
    text = text.replace(
        "self.model, self.optimizer = self.accelerator.prepare(model, optimizer)", "self.model = model"
    )
    text = text.replace("not self.accelerator.is_main_process", "dist.get_rank() != 0").replace(
        "Path(", "str("
    )
    text += "    def _join(self):\n        dist.init_process_group('nccl')\n"
    assert lines_of(lint(text, head=head), "CKP003") == find_marked(text, head)


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {"map": ", map_location='cpu'"},
        {"map": ", map_location=self.accelerator.device"},
        {"map": ", mmap=True"},
        {"made": "cpu=True"},
        {"made": "cpu=number"},
        {"name": "model-{self.accelerator.process_index}"},
        {"before": "if not self.accelerator.is_main_process:\n            return"},
        {"decorator": "@on_main_process"},
    ],
)
def test_trainer_that_loads_elsewhere_or_on_one_rank(parts: dict[str, str]) -> None:
    assert lint(write(**parts), head=HEAD) == []


@pytest.mark.right
def test_class_that_makes_no_ranks() -> None:
    text = write().replace("Accelerator()", "Device()").replace("from accelerate import Accelerator", "")
    assert lint(text, head=HEAD) == []
    assert ask(text) == []


@pytest.mark.right
def test_class_of_a_test() -> None:
    assert lint(write().replace("class Trainer", "class TestTrainer"), head=HEAD) == []


def test_weights_that_the_class_does_not_save_are_asked_about() -> None:
    text = (
        write().split("    def save")[0]
        + "    def load(self, path):\n        self.model.load_state_dict(torch.load(path))\n"
    )
    assert lint(text, head=HEAD) == []
    assert ask(text) == ["CKP003"]


def test_method_that_one_rank_alone_calls_is_judged_where_it_is_called() -> None:
    text = (
        write()
        + "    def resume(self):\n        if self.accelerator.is_main_process:\n            self.load(1)\n"
    )
    assert lint(text, head=HEAD) == []


@pytest.mark.parametrize(("first", "asked"), [("is_local_main_process", ["CKP001"]), ("is_main_process", [])])
def test_rank_0_of_each_node_writes_one_file(first: str, asked: list[str]) -> None:
    text = write(first=first, map=", map_location='cpu'")
    assert lint(text, head=HEAD) == []
    assert ask(text) == asked


STARTED = {
    "start.py": "import torch.multiprocessing as mp\nfrom lib import work\nif __name__ == '__main__':\n    mp.spawn(work, (3,), 4)\n",
    "lib.py": "import os\nfrom torch import cuda\nfrom group import join\ndef work(rank, size):\n    join(rank, size)\n    os.makedirs('runs')\n",
    "group.py": "import torch\ndef join(rank, size):\n    torch.distributed.init_process_group('nccl', rank=rank, world_size=size)\n",
}  # fmt: skip


@pytest.mark.wrong
def test_function_that_is_started_from_another_file() -> None:
    """The file in which it stands may name nothing by which programs of ranks are told."""
    found = [each for each in judge(read(STARTED)) if each.code == "CKP005"]
    assert [(each.where[0].file, each.where[0].line) for each in found] == [("lib.py", 6)]
    assert "CKP005" not in {
        each.code for each in judge(read({k: v for k, v in STARTED.items() if k != "start.py"}))
    }


@pytest.mark.wrong
def test_script_of_deepspeed() -> None:
    head = "import os\nimport deepspeed\ndeepspeed.init_distributed()\n"
    text = "os.makedirs('runs')  # here\n"
    assert lines_of(lint(text, head=head), "CKP005") == find_marked(text, head)
    assert lint(text.replace("')", "', exist_ok=True)"), head=head) == []


SCRIPT = """\
import argparse, os
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int)
args = parser.parse_args()
{join}
class Saver:
    def __init__(self, folder):
        self.folder = folder
    def save(self, model):
        torch.save(model.state_dict(), os.path.join(self.folder, {name}))
def save(model, path):
    if args.local_rank > 0:
        return
    torch.save(model.state_dict(), path)
model = torch.nn.Linear(2, 2)
{body}
dist.destroy_process_group()
"""
OF_NODES = "if args.local_rank == 0:\n    torch.save(model.state_dict(), 'last.pt')"
JOIN = 'dist.init_process_group("gloo")'


@pytest.mark.parametrize(
    ("parts", "asked"),
    [
        ({}, True),
        ({"body": "save(model, 'last.pt')"}, True),
        ({"body": "saver = None\nif args.local_rank == 0:\n    saver = Saver('runs')\nif saver is not None:\n    saver.save(model)"}, True),
        ({"body": "first = int(os.environ['LOCAL_RANK']) == 0\nif first:\n    torch.save(model.state_dict(), 'last.pt')"}, True),
        ({"body": "rank = int(os.environ['RANK'])\nif rank == 0:\n    torch.save(model.state_dict(), 'last.pt')"}, False),
        ({"body": "if args.local_rank == 0 and dist.get_rank() == 0:\n    torch.save(model.state_dict(), 'last.pt')"}, False),
        ({"body": "if dist.get_rank() == 0:\n    save(model, 'last.pt')"}, False),
        ({"body": "if args.local_rank == 0:\n    torch.save(model.state_dict(), f'{args.node}.pt')"}, False),
        ({"body": "if args.local_rank == 0:\n    torch.save(model.state_dict(), f'{dist.get_rank()}.pt')"}, False),
        ({"join": 'dist.init_process_group("gloo", rank=args.local_rank, world_size=4)'}, False),
        ({"join": 'dist.init_process_group("gloo", "tcp://127.0.0.1:23456", rank=0, world_size=4)'}, False),
        ({"join": JOIN + "\nargs.local_rank = dist.get_rank()"}, False),
        ({"body": "if args.local_rank == 0:\n    print(model)"}, False),
    ],
)  # fmt: skip
def test_saves_of_the_first_rank_in_each_node(parts: dict[str, str], asked: bool) -> None:
    text = SCRIPT.format(**{"join": JOIN, "name": "'last.pt'", "body": OF_NODES} | parts)
    assert [each.code for each in lint(text, head="") if each.role != QUESTION] == []
    assert ask(text, head="") == (["CKP001"] if asked else [])


HELPED = """\
import os
import torch
import torch.distributed as dist
from torchvision import datasets
def join():
    dist.init_process_group("gloo")
class Trainer:
    def __init__(self):
        {join}
        self.data = datasets.MNIST("data", download={download})  # here
    def fetch(self):
        return datasets.CIFAR10("data", download=True)
"""


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({}, True),
        ({"join": "dist.init_process_group('gloo')"}, True),
        ({"join": "self.rank = 0"}, False),
        ({"download": "dist.get_rank() == 0"}, False),
    ],
)
def test_class_that_becomes_a_rank_by_a_function(parts: dict[str, str], found: bool) -> None:
    """What it may be called for on one rank is not told."""
    text = HELPED.format(**{"join": "join()", "download": "True"} | parts)
    assert lines_of(lint(text, head=""), "DAT008") == (find_marked(text, "") if found else set())
