"""Which calls are collectives that some ranks do not reach: behind functions, options and what makes a model."""

from __future__ import annotations

import textwrap

import pytest

from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge import Finding
from tests.lint import judging

HEAD = "import os, sys, time\nimport torch\nimport torch.distributed as dist\n"


def read(**files: str) -> tuple[SourceFile, ...]:
    return judging.read({f"{name}.py": HEAD + textwrap.dedent(text) for name, text in files.items()})


def lint(**files: str) -> list[Finding]:
    return judging.judge(read(**files))


PREPARED = """\
import transformers, diffusers
from accelerate import Accelerator
class Own(transformers.PreTrainedModel):
    @classmethod
    def from_pretrained(cls, name):
        return super().from_pretrained(name)
class Plain(torch.nn.Module):
    pass
accelerator = Accelerator()
if accelerator.is_main_process:
    accelerator.prepare({made}("x"))
"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("diffusers.UNet2DConditionModel.from_pretrained", 1),
        ("diffusers.AutoencoderKL.from_pretrained", 1),
        ("transformers.AutoModelForCausalLM.from_config", 1),
        ("Own.from_pretrained", 1),
        ("Own", 1),
        ("Plain", 1),
        ("diffusers.DDPMScheduler.from_pretrained", 0),
        ("transformers.AutoConfig.from_pretrained", 0),
        ("load", 0),
    ],
)
def test_what_makes_a_model_that_is_prepared(made: str, found: int) -> None:
    assert len(lint(train=PREPARED.format(made=made))) == found


def test_functions_are_followed_over_files() -> None:
    helper = "def total(t):\n    dist.all_reduce(t)\n"
    (found,) = lint(
        train="from helpers import total\nif dist.get_rank() == 0:\n    total(1)\n", helpers=helper
    )
    assert [(place.file, place.role) for place in found.where] == [
        ("train.py", "culprit"), ("helpers.py", "noticed"), ("train.py", "condition"),
    ]  # fmt: skip


def test_several_calls_below_one_test_are_one_finding() -> None:
    (found,) = lint(train="if dist.get_rank() == 0:\n    dist.barrier()\n    dist.all_reduce(x)\n")
    assert found.where[0].line == 5
    assert found.details["more_lines"] == [6]


@pytest.mark.parametrize(("test", "certain"), [("dist.is_initialized()", True), ("mode == 'debug'", False)])
def test_below_another_test_it_is_not_certain(test: str, certain: bool) -> None:
    source = f"""\
import torch.distributed as dist
def work(mode):
    if {test}:
        if dist.get_rank() == 0:
            dist.barrier()
"""
    (row,) = judging.read({"train.py": source})
    (call,) = row.uneven
    assert call.certain is certain


LOADING = """
def load(path, everywhere={head}):
    if everywhere and path:
        dist.barrier()
    return torch.load(path, map_location="cpu")
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    {call}
"""


@pytest.mark.parametrize(
    ("head", "call", "found"),
    [
        ("False", "state = load('a.pt')", 0),
        ("False", "state = load('a.pt', everywhere=False)", 0),
        ("False", "state = load('a.pt', True)", 1),
        ("False", "state = load('a.pt', **options)", 1),
        ("True", "state = load('a.pt')", 1),
    ],
)
def test_a_collective_below_an_option_that_a_call_leaves_off(head: str, call: str, found: int) -> None:
    (file,) = read(train=LOADING.format(head=head, call=call))
    assert len(file.uneven) == found
