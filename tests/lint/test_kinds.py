"""What a value is, followed to the call that made it."""

from __future__ import annotations

import ast
import textwrap

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import Files

HEAD = """
import copy, torch, torchvision.models as models
from torch import nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from accelerate import Accelerator
class Net(nn.Module):
    pass
class Deep(Net):
    pass
"""


def kinds_at_mark(source: str, **others: str) -> list[str]:
    """Return the kinds of the argument of ``mark(...)``."""
    scripts = [parse_script((HEAD + textwrap.dedent(source)).encode(), "train.py")]
    scripts += [parse_script(textwrap.dedent(text).encode(), f"{name}.py") for name, text in others.items()]
    files = Files(scripts)
    kinds = Kinds(files)
    for scope in files.modules[0].walk():
        for statement, _ in kinds.flow(scope).statements:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "mark":
                return sorted(each.kind for each in kinds.find(call.args[0], scope))
    raise AssertionError("no mark")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("m = Deep().to(0)\nmark(m)\nm = DDP(m)\n", ["model"]),
        ("m = Deep().to(0)\nm = DDP(m)\nmark(m)\n", ["wrapped"]),
        ("m = Deep()\nif c:\n    m = DDP(m)\nmark(m)\n", ["model", "wrapped"]),
        ("m = Deep()\nif args.distributed:\n    m = DDP(m)\nmark(m)\n", ["wrapped"]),
        ("m = Deep()\nif not dist.is_initialized():\n    pass\nelse:\n    m = DDP(m)\nmark(m)\n", ["wrapped"]),
        ("m = DDP(Net())\nwith x:\n    try:\n        mark(m.module)\n    except E:\n        pass\n", ["model"]),
        ("for i in r:\n    mark(m)\n    m = DDP(Net())\n", ["wrapped"]),
        ("m = Net()\nfor i in r:\n    mark(m)\n    m = DDP(Net())\n", ["model", "wrapped"]),
        ("s = DistributedSampler(d) if world_size > 1 else None\nmark(s)\n", ["sampler"]),
        ("def f():\n    return Net(), torch.optim.SGD([], 1)\nm, o = f()\nmark(o)\n", ["optimizer"]),
        ("m = models.__dict__[a.arch]()\nmark(nn.SyncBatchNorm.convert_sync_batchnorm(m))\n", ["model"]),
        ("acc = Accelerator()\nl = DataLoader(d)\nm, l = acc.prepare(Net(), l)\nmark(l)\n", ["prepared"]),
        ("m = Net()\nmark([m for m in ms])\n", ["unknown"]),
        ("for m in ms:\n    mark(m)\n", ["unknown"]),
        ("m = copy.deepcopy(DDP(Net()))\nmark(m)\n", ["wrapped"]),
        ('d = {"a": Net(), "b": DataLoader(x)}\nmark(d["b"])\n', ["loader"]),
        ('d = dict(a=Net(), b=DataLoader(x))\nmark(d["a"])\n', ["model"]),
        ('d = {}\nd["a"] = Net()\nd["b"] = DataLoader(x)\nmark(d["b"])\n', ["loader"]),
        ('d = {"a": Net()}\nif c:\n    d["a"] = DataLoader(x)\nmark(d["a"])\n', ["loader", "model"]),
        ('d = {k: DataLoader(x) for k in ("a", "b")}\nmark(d["b"])\n', ["loader"]),
        ('d = {"a": Net(), **more}\nmark(d["a"])\n', ["unknown"]),
        ('d = {"a": Net()}\nmark(d["b"])\n', ["unknown"]),
        ('d = {"a": Net()}\nmark(d[k])\n', ["unknown"]),
        ('d = read()\nmark(d["a"])\n', ["unknown"]),
        ("d = [Net(), DataLoader(x)]\nmark(d[1])\n", ["loader"]),
        ("d = [Net(), DataLoader(x)]\nmark(d[-1])\n", ["loader"]),
        ("d = [Net()]\nmark(d[3])\n", ["unknown"]),
        ("d = [Net(), *more]\nmark(d[0])\n", ["unknown"]),
        ("d = [Net()]\nd[0] = read()\nmark(d[0])\n", ["unknown"]),
        ("d = [Net()]\nd.insert(0, x)\nmark(d[0])\n", ["unknown"]),
        ("d = [Net()]\nd += more\nmark(d[0])\n", ["unknown"]),
        ("d = [DDP(m) for m in (Net(), Deep())]\nmark(d[1])\n", ["wrapped"]),
        ("d = [DDP(m) for m in (Net(), Deep())]\nmark(d[1].module)\n", ["model", "model"]),
        ("d = nn.ModuleList([Net(), Deep()])\nfor m in d:\n    mark(m)\n", ["model", "model"]),
        ("for i, m in enumerate([DDP(Net())]):\n    mark(m)\n", ["wrapped"]),
        ("for m, o in zip([DDP(Net())], opts):\n    mark(m)\n", ["wrapped"]),
        ("for m, o in zip([DDP(Net())], opts):\n    mark(o)\n", ["unknown"]),
        ("for x in DataLoader(d):\n    mark(x)\n", ["unknown"]),
        ("def f():\n    return [Net(), Deep()]\nfor m in f():\n    mark(m)\n", ["model", "model"]),
        ("a, b = (DDP(m) for m in (Net(), Deep()))\nmark(b)\n", ["wrapped"]),
        ("d = {'a': DDP(Net())}\nfor m in d.values():\n    mark(m)\n", ["wrapped"]),
        ("d = {'a': DDP(Net()), 'b': Net()}\nfor k, m in d.items():\n    mark(m)\n", ["model", "wrapped"]),
        ("d = {'a': DDP(Net()), **more}\nfor k, m in d.items():\n    mark(m)\n", ["unknown"]),
        ("d = {'a': Net()}\nd['b'] = 1\nfor m in d.values():\n    mark(m)\n", ["unknown"]),
        ("d = {k: DDP(m) for k, m in {'a': Net()}.items()}\nfor m in d.values():\n    mark(m.module)\n", ["model"]),
        ("for m in {'a': Net()}:\n    mark(m)\n", ["unknown"]),
        ("for m in {k: Net() for k in names}:\n    mark(m)\n", ["unknown"]),
        ("d = [[Net()]]\nfor (m,) in d:\n    mark(m)\n", ["unknown"]),
        ("mark(zip(range(3), DataLoader(x)))\n", ["loader"]),
        ("mark(zip(range(3), numbers))\n", ["unknown"]),
        ("def f(l):\n    while True:\n        for x in l:\n            yield x\nmark(f(DataLoader(d)))\n", ["loader"]),
        ("def f(l):\n    for x in l:\n        yield x, 1\nmark(f(DataLoader(d)))\n", ["loader"]),
        ("def f(l):\n    for x in l:\n        yield y\nmark(f(DataLoader(d)))\n", ["unknown"]),
        ("def f(l):\n    yield from l\n    yield 1\nmark(f(DataLoader(d)))\n", ["unknown"]),
        ("mark(nn.DataParallel(Net()))\n", ["data parallel"]),
    ],
)  # fmt: skip
def test_kind_in_a_scope(source: str, expected: list[str]) -> None:
    assert kinds_at_mark(source) == expected


def test_parameter_is_what_the_calls_give() -> None:
    source = "def step(model, n=1):\n    mark(model)\nstep(DDP(Net()))\n"
    assert kinds_at_mark(source) == ["wrapped"]
    assert kinds_at_mark(source + "step(n=2, model=Net())\n") == ["model", "wrapped"]
    assert kinds_at_mark(source + "step(*given)\n") == ["unknown", "wrapped"]


def test_attribute_is_followed_through_the_constructor() -> None:
    source = """
    class Trainer:
        def __init__(self, model):
            self.model = model.to(0)
            self.model = DDP(self.model)
        def run(self):
            mark(self.model)
    Trainer(Net())
    """
    assert kinds_at_mark(source) == ["wrapped"]


def test_function_sees_what_holds_where_it_is_called() -> None:
    source = "m = Net()\ndef f():\n    mark(m)\nm = DDP(m)\nf()\n"
    assert kinds_at_mark(source) == ["wrapped"]
    assert kinds_at_mark("m = Net()\ndef f():\n    mark(m)\nf()\nm = DDP(m)\nf()\n") == ["model", "wrapped"]


def test_value_comes_from_another_file() -> None:
    given = "import torch\ndef make():\n    return torch.utils.data.DataLoader([1])\n"
    assert kinds_at_mark("from build import make\nmark(make())\n", build=given) == ["loader"]


def test_each_call_of_a_function_makes_another_object() -> None:
    source = (
        "def make():\n    return Net()\ndef same(x):\n    return x\na = make()\nb = make()\nc = same(a)\n"
    )
    files = Files([parse_script((HEAD + source).encode(), "train.py")])
    module, kinds = files.modules[0], Kinds(files)
    a, b, c = (kinds.find(module.bound[name][0], module)[0].identity for name in "abc")
    assert a != b
    assert a == c


def test_circle_ends() -> None:
    assert kinds_at_mark("def f(x):\n    mark(x)\n    return f(x)\nf(f(1))\n") == ["unknown"]


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("import helper\nhelper.setup()\n", True),
        ("from helper import setup\nif __name__ == '__main__':\n    setup()\n", True),
        ("import helper\nprint(helper)\n", False),
    ],
)
def test_program_is_distributed_where_it_joins(main: str, expected: bool) -> None:
    texts = {
        "main": main,
        "helper": "import torch.distributed as dist\ndef setup():\n    dist.init_process_group()\n",
    }
    # the main file has to mention the library to be read
    files = Files([parse_script(f"# torch\n{text}".encode(), f"{name}.py") for name, text in texts.items()])
    main_module = files.modules[0]
    programs = Kinds(files).programs
    assert programs.is_distributed(main_module) is expected
    assert set(programs.members(files.modules[1])) == set(files.modules)
