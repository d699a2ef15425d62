"""What our code uses of torch is in every version that it runs under, by the versions' own source.

The data was read from the wheels (scripts/torch_surface.py); here nothing is fetched and torch is not imported.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from scripts.torch_surface import DATA, ROOT, VERSIONS, find_faults, gather, list_ours
from scripts.torch_uses import Program, add_module, list_words, read_program
from scripts.torch_wheels import Source, Surface

AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DATA.read_text())
    return loaded


@pytest.mark.unmeasured
def test_every_version_has_what_is_used_unguarded(data: dict[str, Any]) -> None:
    assert tuple(data["versions"]) == VERSIONS
    uses = list_ours()
    assert "\n".join(find_faults(uses, data)) == ""
    used = {use.name for use in uses}
    # One of each way to come by a name: import, attribute, class made of torch's, sys.modules, what is patched, probed.
    assert {
        AGENT,
        f"{AGENT}._monitor_workers",
        "torch.distributed.all_reduce",
        "torch._C.DisableTorchFunction",
        "torch.distributed.c10d_logger._WaitCounter",
        "torch.nn.parallel.distributed.DistributedDataParallel._lazy_init",
        "torch.multiprocessing.spawn.ProcessContext",
        "torch.distributed.distributed_c10d.irecv",
    } <= used


def judge(data: dict[str, Any], text: str, file: str = "ddpdoctor/launch/somewhere.py") -> list[str]:
    program = Program()
    add_module(program, "ddpdoctor/watch/inject/ddpdoctor_watch/finder.py", FINDER)
    add_module(program, file, textwrap.dedent(text))
    return find_faults(read_program(program), data)


FINDER = 'TARGETS = {"torch.distributed.c10d_logger": "patch_logger"}\n'
OLD_DECORATORS = '''
    def install(module):
        for name, source in (("_exception_logger", ""), ("_time_logger", _TIME_LOGGER)):
            original = getattr(module, name, None)
            if hasattr(module, "_get_msg_dict"):
                _make_decorator(module, original, source)


    def _make_decorator(module, original, source):
        made = {"module": module}
        exec(compile(source, "", "exec"), made)


    _TIME_LOGGER = """def make(func, spec):
        def wrapper(*args, **kwargs):
            with Counting(module._WaitCounter, func.__name__):
                return func(*args, **kwargs)
        return wrapper
    """
'''


def test_the_counter_that_killed_jobs_under_torch_2_5_would_have_been_found(data: dict[str, Any]) -> None:
    program = Program()
    folder = "ddpdoctor/watch/inject/ddpdoctor_watch"
    add_module(program, f"{folder}/finder.py", FINDER)
    add_module(
        program,
        f"{folder}/torchpatches.py",
        "from .calls import decorators\ndef patch_logger(module):\n    decorators.install(module)\n",
    )
    add_module(program, f"{folder}/calls/decorators.py", textwrap.dedent(OLD_DECORATORS))
    (fault,) = find_faults(read_program(program), data)
    assert fault.endswith("torch 2.4.1, 2.5.1 has no torch.distributed.c10d_logger._WaitCounter")
    assert fault.startswith(f"{folder}/calls/decorators.py:16:")


def test_the_argument_that_failed_check_under_torch_2_11_would_have_been_found(data: dict[str, Any]) -> None:
    (fault,) = judge(
        data,
        """
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

        def run_ranks(report, spec, logs):
            agent = _PromptAgent(
                report, spec, logs_specs=logs, start_method="forkserver", shutdown_timeout=3
            )

        class _PromptAgent(LocalElasticAgent):
            def __init__(self, report, *arguments, **settings):
                super().__init__(*arguments, **settings)
        """,
    )
    assert fault == (
        f"ddpdoctor/launch/somewhere.py:5: {AGENT} of torch 2.4.1, 2.5.1, 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0"
        " takes no shutdown_timeout"
    )


COUNTER = "torch.distributed.c10d_logger._WaitCounter"


@pytest.mark.parametrize(
    "code",
    [
        "from torch.distributed.c10d_logger import _WaitCounter",
        "import torch\ntorch.distributed.c10d_logger._WaitCounter",
        "import torch.distributed as dist\nfound = dist.c10d_logger\ndef f():\n    return found._WaitCounter",
        "import sys\ndef f():\n    return sys.modules['torch.distributed.c10d_logger']._WaitCounter",
        "from torch.distributed import c10d_logger\ngetattr(c10d_logger, '_WaitCounter')",
        "from torch.distributed import c10d_logger\nfor name in ('_WaitCounter',):\n    getattr(c10d_logger, name)",
        "from torch.distributed import c10d_logger\ndef f(x):\n    return x._WaitCounter\nf(c10d_logger)",
        "from torch.distributed import c10d_logger\ndef replace(o, n):\n    getattr(o, n)\nreplace(c10d_logger, '_WaitCounter')",
        "try:\n    from torch.distributed.c10d_logger import _WaitCounter\nexcept Exception:\n    pass",
    ],
    ids=[
        "from",
        "attribute",
        "assigned",
        "sys.modules",
        "getattr",
        "loop",
        "argument",
        "replace",
        "caught broadly",
    ],
)
def test_a_name_that_old_versions_lack_is_found_however_it_is_come_by(
    data: dict[str, Any], code: str
) -> None:
    faults = judge(data, code)
    assert any(f"torch 2.4.1, 2.5.1 has no {COUNTER}" in fault for fault in faults), faults


@pytest.mark.parametrize(
    "code",
    [
        "from torch.distributed import c10d_logger\ngetattr(c10d_logger, '_WaitCounter', None)",
        "from torch.distributed import c10d_logger\ndef f():\n    if hasattr(c10d_logger, '_WaitCounter'):\n        c10d_logger._WaitCounter",
        "try:\n    from torch.distributed.c10d_logger import _WaitCounter\nexcept ImportError:\n    pass",
        "from torch.distributed import c10d_logger\ndef wrap(o, n):\n    getattr(o, n, None)\nwrap(c10d_logger, '_WaitCounter')",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from torch.distributed.c10d_logger import _WaitCounter",
    ],
    ids=["getattr", "hasattr", "import", "wrap", "types"],
)
def test_what_is_probed_for_is_no_fault(data: dict[str, Any], code: str) -> None:
    assert judge(data, code) == []


def test_a_use_that_nobody_has_looked_up_is_a_fault(data: dict[str, Any]) -> None:
    (fault,) = judge(data, "import torch\ntorch.newest_function()")
    assert "torch.newest_function is not in torch_surface.json" in fault
    (fault,) = judge(data, "import torch.distributed as dist\ndist.barrier(newest=1)")
    assert "torch.distributed.barrier(newest=) is not in" in fault


def test_an_argument_is_probed_for_by_the_module_of_versions(data: dict[str, Any]) -> None:
    code = f"""
        from {AGENT.rpartition(".")[0]} import LocalElasticAgent
        from ddpdoctor.facts.versions import pick_taken
        LocalElasticAgent(**pick_taken(LocalElasticAgent, shutdown_timeout=3))
    """
    assert judge(data, code) == []


def test_pages_name_the_version_of_what_old_ones_lack(data: dict[str, Any]) -> None:
    name = "torch._C._distributed_c10d._dump_fr_trace"
    (fault,) = find_faults(list_words("docs/guide.md", f"`{name}()` gives the same bytes"), data)
    assert fault.startswith("docs/guide.md:1: torch 2.4.1, 2.5.1, 2.6.0, 2.7.1 has no")
    assert not find_faults(list_words("docs/guide.md", f"`{name}()` (torch 2.8 and later)"), data)


class FakeSource(Source):
    """Files as a wheel has them."""

    def __init__(self, files: dict[str, str]) -> None:
        self.texts = files
        self._files = set(files)
        self._folders = {name.rpartition("/")[0] for name in files}

    def read(self, file: str) -> str:
        return self.texts[file]

    def has_word(self, word: str) -> bool:
        return word == "_made_by_c"


WHEEL = {
    "torch/__init__.py": "from torch import nn as nn\nfrom .functional import *\n",
    "torch/functional.py": "__all__ = ['shown']\ndef shown(a, *, b=1): ...\ndef hidden(): ...\n",
    "torch/nn/__init__.py": "from torch.nn.linear import Linear as Linear\ntry:\n    import numpy\nexcept ImportError:\n    pass\n",
    "torch/nn/linear.py": "class Base:\n    def __init__(self, size, bias=True): self.size = size\n    @property\n    def wide(self): ...\n"
    "class Linear(Base):\n    def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs)\n    class Kind: x = 1\n",
    "torch/_C/__init__.pyi": "def stubbed(a: int = ...) -> None: ...\n",
}


def test_the_source_of_a_wheel_is_read() -> None:
    surface = Surface(FakeSource(WHEEL))
    kinds = {
        name: surface.find(f"torch.{name}").kind
        for name in (
            "nn", "shown", "hidden", "nn.Linear", "nn.Linear.size", "nn.Linear.wide", "nn.Linear.Kind.x",
            "nn.Linear.none", "nn.numpy", "_C.stubbed", "_C._made_by_c", "_C.none", "nn.Linear.wide.more",
        )
    }  # fmt: skip
    assert kinds == {
        "nn": "module", "shown": "function", "hidden": "missing", "nn.Linear": "class", "nn.Linear.size": "value",
        "nn.Linear.wide": "value", "nn.Linear.Kind.x": "value", "nn.Linear.none": "missing", "nn.numpy": "unknown",
        "_C.stubbed": "function", "_C._made_by_c": "unknown", "_C.none": "missing", "nn.Linear.wide.more": "unknown",
    }  # fmt: skip
    taken = surface.takes("torch.nn.Linear")
    assert taken is not None
    assert ({"size", "bias"} <= taken.names, taken.open, taken.most) == (True, False, 2)


def test_what_versions_have_is_gathered_and_compared() -> None:
    program = Program()
    add_module(
        program, "ddpdoctor/a.py", "import torch\ntorch.shown(1, 2, c=3)\ntorch.nn.Linear(1, bias=False)\n"
    )
    uses = read_program(program)
    older = {**WHEEL, "torch/nn/linear.py": "class Linear:\n    def __init__(self, size): ...\n"}
    data = gather(uses, [("1.0", Surface(FakeSource(older))), ("2.0", Surface(FakeSource(WHEEL)))])
    assert find_faults(uses, data) == [
        "ddpdoctor/a.py:2: torch.shown of torch 1.0, 2.0 takes fewer than 2 arguments",
        "ddpdoctor/a.py:2: torch.shown of torch 1.0, 2.0 takes no c",
        "ddpdoctor/a.py:3: torch.nn.Linear of torch 1.0 takes no bias",
    ]


def test_the_script_reads_from_the_root() -> None:
    assert (ROOT / "pyproject.toml").exists()
    assert DATA.parent == Path(__file__).parent
