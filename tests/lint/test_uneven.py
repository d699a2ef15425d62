"""Collectives that some ranks do not reach, as `lint` reads them: wrong programs, and right ones beside them."""

from __future__ import annotations

import textwrap

import pytest

from ddpdoctor.evidence.sources import SourceFile
from ddpdoctor.judge import Finding
from tests.lint import judging

HEAD = "import os, sys, time\nimport torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def read(**files: str) -> tuple[SourceFile, ...]:
    return judging.read({f"{name}.py": HEAD + textwrap.dedent(text) for name, text in files.items()})


def lint(**files: str) -> list[Finding]:
    return judging.judge(read(**files))


NORMED = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.{layer}(3)
    def forward(self, x):
        return self.norm(x)
model = DDP(Net(){more})
for x in batches:
    model(x).sum().backward()
"""
WRONG = {
    "a loss that is handed over": (
        "COL002", "warning",
        """\
        def keep(model, loss, step):
            if loss < 0.5:
                dist.barrier()  # here
                if dist.get_rank() == 0:
                    torch.save(model.module.state_dict(), f"{step}.pt")
        model = DDP(net)
        for step, (x, y) in enumerate(batches):
            loss = criterion(model(x), y)
            loss.backward()
            keep(model, loss.item(), step)
        """,
    ),
    "a backward of a loss that is handed over": (
        "COL002", "warning",
        """\
        def descend(loss, optimizer):
            if torch.isnan(loss):
                return
            loss.backward()  # here
            optimizer.step()
        def main():
            model = DDP(net)
            for x, y in batches:
                out = criterion(model(x), y)
                descend(out, optimizer)
                out.backward()
        """,
    ),
    "a forward that sends buffers": (
        "COL002", "warning", NORMED.format(layer="BatchNorm2d", more="") + "if dist.get_rank() == 0:\n    model.eval()\n    model(x)  # here\n",
    ),
    "a forward that sends buffers in a function": (
        "COL002", "warning",
        NORMED.format(layer="BatchNorm1d", more=", find_unused_parameters=False, broadcast_buffers=True")
        + "def evaluate(net, x):\n    with torch.no_grad():\n        return net(x)\n"
        "rank = dist.get_rank()\nif not rank:\n    print(evaluate(model, x))  # here\n",
    ),
    "a forward of a trainer": (
        "COL002", "warning",
        """\
        import torchvision
        class Trainer:
            def __init__(self):
                self.model = DDP(torchvision.models.resnet50())
            def check(self, x):
                return self.model(x)
            def fit(self, batches):
                for x in batches:
                    self.model(x).sum().backward()
                if dist.get_rank() == 0:
                    self.check(x)  # here
        Trainer().fit([])
        """,
    ),
    "below a test": ("COL002", "error", "if dist.get_rank() == 0:\n    dist.barrier()  # here\n"),
    "by a variable of the launcher": (
        "COL002", "error", "rank = int(os.environ['RANK'])\nif rank != 0:\n    x = 1\nelse:\n    dist.all_reduce(t)  # here\n",
    ),
    "after a return": (
        "COL002", "error", "def f(rank):\n    if rank > 0:\n        return\n    dist.broadcast(t, 0)  # here\n",
    ),
    "after a continue": (
        "COL002", "error", "for x in y:\n    if dist.get_rank() == 1:\n        continue\n    dist.all_reduce(x)  # here\n",
    ),
    "after sys.exit": ("COL002", "error", "if dist.get_rank():\n    sys.exit(0)\ndist.barrier()  # here\n"),
    "further rounds after a break": (
        "COL002", "warning", "for x in y:\n    dist.all_reduce(x)  # here\n    if dist.get_rank() == 0:\n        break\n",
    ),
    "other conditions also decide": (
        "COL002", "warning", "if save and dist.get_rank() == 0:\n    dist.barrier()  # here\n",
    ),
    "a helper known by its name": (
        "COL002", "warning", "@rank_zero_only\ndef f():\n    dist.barrier()  # here\n",
    ),
    "below functions": (
        "COL002", "error",
        "def total(t):\n    dist.all_reduce(t)\ndef is_first():\n    return dist.get_rank() == 0\nif is_first():\n    total(1)  # here\n",
    ),
    "below a method": (
        "COL002", "error",
        """\
        class Trainer:
            def __init__(self):
                self.first = dist.get_rank() == 0
            def total(self, t):
                dist.all_reduce(t)
            def step(self):
                if self.first:
                    self.total(1)  # here
        """,
    ),
    "in a decorator of the file": (
        "COL002", "error",
        """\
        def first_only(function):
            def call(*args):
                if dist.get_rank() == 0:
                    return function(*args)
            return call
        @first_only
        def f():
            dist.barrier()  # here
        """,
    ),
    "in an expression": ("COL002", "warning", "is_main_process() and dist.barrier()  # here\n"),
    "behind a test for the launcher": (
        "COL002", "error",
        "def f(local_rank):\n    if local_rank == -1:\n        return\n    if dist.get_rank() == 0:\n        dist.barrier()  # here\n",
    ),
    "by the name of an argument": (
        "COL002", "warning", "def f(is_main_process):\n    if is_main_process:\n        dist.barrier()  # here\n",
    ),
    "on the first of accelerate's processes": (
        "COL002", "warning",
        "from accelerate import Accelerator\na = Accelerator()\nif a.is_main_process:\n    a.wait_for_everyone()  # here\n",
    ),
    "in a conditional expression": ("COL002", "error", "x = 1 if dist.get_rank() == 0 else total(dist.barrier())  # here\n"),
    "spawned": (
        "COL002", "error",
        "import torch.multiprocessing as mp\ndef work(index, n):\n    if index == 0:\n        dist.barrier()  # here\nif __name__ == '__main__':\n    mp.spawn(work, (2,), 2)\n",
    ),
    "by the clock": (
        "COL002", "warning",
        "start = time.time()\nwhile True:\n    dist.all_reduce(x)  # here\n    if time.time() - start > 60:\n        break\n",
    ),
    "rounds of a loop": ("COL002", "error", "for i in range(dist.get_rank()):\n    dist.barrier()  # here\n"),
    "backward of a wrapped model": (
        "COL002", "error",
        "model = DDP(net)\nloss = model(x).sum()\nif dist.get_rank() == 0:\n    loss.backward()  # here\n",
    ),
    "backward of a model that is handed over": (
        "COL002", "error",
        "def step(model, x):\n    out = model(x)\n    if dist.get_rank() == 0:\n        out.sum().backward()  # here\nstep(DDP(net), 1)\n",
    ),
    "a round is left out for a loss": (
        "COL002", "warning",
        "model = DDP(net)\nfor x in xs:\n    loss = model(x).sum()\n    if torch.isnan(loss):\n        continue\n    loss.backward()  # here\n",
    ),
    "until the own loss is small": (
        "COL002", "warning",
        "model = DDP(net)\nfor x in xs:\n    loss = criterion(model(x), 1)\n    loss.backward()  # here\n"
        "    if loss.item() < 0.1:\n        break\n",
    ),
    "a collective below the own loss": (
        "COL002", "warning",
        "def train(model):\n    loss = model(x).mean()\n    loss.backward()\n    value = loss.item()\n    if value > 10:\n"
        "        dist.barrier()  # here\ntrain(DDP(net))\n",
    ),
    "by lot": (
        "COL002", "warning", "import random\nif random.random() < 0.5:\n    dist.all_reduce(x)  # here\n",
    ),
    "rank 0 leaves by what it finds": (
        "COL002", "warning",
        """\
        def fit(rank, patience):
            best, bad = 1e9, 0
            for epoch in range(9):
                loss = float(open(f"{epoch}.txt").read())
                if rank == 0:
                    if loss >= best:
                        bad += 1
                        if bad > patience:
                            break
                    else:
                        best = loss
                dist.barrier()  # here
        fit(dist.get_rank(), 3)
        """,
    ),
    "rank 0 returns by what it finds": (
        "COL002", "warning",
        """\
        def update(grads):
            if dist.get_rank() == 0:
                if not grads:
                    return
                if torch.cat(grads).isnan().any():
                    return None
            dist.barrier()  # here
        """,
    ),
    "in a handler": (
        "COL002", "warning",
        "try:\n    data = open('x').read()\nexcept OSError:\n    dist.barrier()  # here\n",
    ),
    "a handler that leaves": (
        "COL002", "warning",
        "for name in names:\n    try:\n        x = torch.load(name)\n    except Exception as error:\n        print(error)\n"
        "        continue\n    dist.all_reduce(x)  # here\n",
    ),
    "an error of one rank is passed over": (
        "COL002", "warning",
        "model = DDP(net)\nfor x in xs:\n    try:\n        model(x).sum().backward()  # here\n"
        "    except torch.cuda.OutOfMemoryError:\n        torch.cuda.empty_cache()\n",
    ),
    "prepared on some": (
        "COL002", "warning",
        """\
        from accelerate import Accelerator
        from transformers import AutoModel
        accelerator = Accelerator()
        model = accelerator.prepare(AutoModel.from_pretrained("x"))
        if accelerator.is_main_process:
            model = accelerator.unwrap_model(model)
            model.save_pretrained("out")
            model = accelerator.prepare(model)  # here
        """,
    ),
    "wrapped on some": ("COL002", "error", "if dist.get_rank() != 0:\n    net = DDP(net)  # here\n"),
    "the other side calls something else": (
        "COL002", "error", "if dist.get_rank() == 0:\n    dist.all_reduce(x)  # here\nelse:\n    print('no')\n",
    ),
    "a group on some": ("COL006", "error", "if dist.get_rank() < 2:\n    g = dist.new_group([0, 1])  # here\n"),
    "a group after a return": (
        "COL006", "error", "def f(rank):\n    if rank == 1:\n        return\n    dist.new_group([0, 2])  # here\n",
    ),
    "groups of other lists": (
        "COL006", "error",
        "if dist.get_rank() < 2:\n    g = dist.new_group([0, 1])  # here\nelse:\n    g = dist.new_group([2, 3])  # here\n",
    ),
}  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize("name", WRONG)
def test_wrong_program_is_found_at_its_line(name: str) -> None:
    code, severity, text = WRONG[name]
    findings = lint(train=text)
    marked = {n for n, line in enumerate((HEAD + textwrap.dedent(text)).splitlines(), 1) if "# here" in line}
    assert {each.where[0].line for each in findings} == marked
    for each in findings:
        assert (each.code, each.severity) == (code, severity)
        assert each.where[0].file == "train.py"
        assert each.where[0].role == "culprit"
        assert each.fix


RIGHT = {
    "a number that is handed over, and a loss once": """\
        def keep(model, loss):
            if loss < 0.5:
                dist.barrier()
        model = DDP(net)
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            keep(model, loss.item())
        keep(model, 0.1)
        """,
    "a loss that a function reduces by its name": """\
        model = DDP(net)
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            total = reduce_loss(loss.detach())
            if total < 0.5:
                dist.barrier()
        """,
    "a loss that is reduced and handed over": """\
        def keep(model, loss):
            if loss < 0.5:
                dist.barrier()
        model = DDP(net)
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            total = mean_over_ranks(loss.detach())
            keep(model, total)
        """,
    "a forward inside of the wrapper": NORMED.format(layer="BatchNorm2d", more="") + "if dist.get_rank() == 0:\n    model.module(x)\n",
    "a forward without buffers": NORMED.format(layer="LayerNorm", more="") + "if dist.get_rank() == 0:\n    model(x)\n",
    "a forward that sends none": NORMED.format(layer="BatchNorm2d", more=", broadcast_buffers=False") + "if dist.get_rank() == 0:\n    model(x)\n",
    "a forward in this version's words": NORMED.format(layer="BatchNorm2d", more=", forward_sync_buffers=False") + "if dist.get_rank() == 0:\n    model(x)\n",
    "a forward on each rank": NORMED.format(layer="BatchNorm2d", more="") + "y = model(x)\nif dist.get_rank() == 0:\n    print(y)\n",
    "a forward that may be of the bare model": NORMED.format(layer="BatchNorm2d", more="") + "if careful:\n    model = model.module\nif dist.get_rank() == 0:\n    model(x)\n",
    "both sides": "if dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    print(1)\n    dist.barrier()\n",
    "rank 0 goes first": (
        "def first(local_rank):\n    if local_rank not in [-1, 0]:\n        dist.barrier()\n    load()\n"
        "    if local_rank == 0:\n        dist.barrier()\n"
    ),
    "rank 0 goes first, where there are others": (
        "def first(local_rank, ddp):\n    if ddp and local_rank != 0:\n        dist.barrier()\n    load()\n"
        "    if ddp and local_rank == 0:\n        dist.barrier()\n"
    ),
    "a method of another object": (
        "if dist.get_rank() == 0:\n    parts.gather(1)\n    loss.backward()\n    pool.reduce(sum)\n"
    ),
    "a group of its own": "if dist.get_rank() in (0, 1):\n    dist.all_reduce(x, group=pair)\n",
    "is it distributed": "if args.local_rank != -1:\n    dist.barrier()\n",
    "is there a launcher": "rank = int(os.environ.get('RANK', -1))\nif rank >= 0:\n    dist.barrier()\n",
    "a test that leaves on all": "def f(rank, world_size):\n    if world_size == 1:\n        return\n    dist.barrier()\n",
    "saved on rank 0": "if dist.get_rank() == 0:\n    torch.save(net.state_dict(), p)\ndist.barrier()\n",
    "the clock of rank 0 decides": (
        "over = torch.tensor(time.time() - start > 60)\ndist.broadcast(over, 0)\nif over:\n    dist.barrier()\n"
    ),
    "each in its turn": "for i in range(n):\n    if i == dist.get_rank():\n        dist.barrier()\n",
    "the other side is not known": (
        "from project import serve\nif dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    serve()\n"
    ),
    "a side with a test of its own": (
        "if not in_order and dist.get_rank() == 0:\n    print(1)\nelif in_order:\n    for i in range(2):\n        dist.barrier()\n"
    ),
    "an exception": "if dist.get_rank() == 0 and bad:\n    raise ValueError\ndist.barrier()\n",
    "an expected failure": "if dist.get_rank() == 0:\n    with self.assertRaises(RuntimeError):\n        dist.barrier()\n",
    "a bare model": (
        "model = DDP(net)\nout = model(x)\nif dist.get_rank() == 0:\n    out = net(x)\n    out.backward()\n"
    ),
    "both sides leave": (
        "def f(rank):\n    if rank == 0:\n        dist.barrier()\n        return 1\n    else:\n        dist.barrier()\n        return 2\n"
    ),
    "the side that returns makes it too": (
        "def f(rank):\n    if rank == 0:\n        dist.barrier()\n        return\n    dist.barrier()\n"
    ),
    "in both helpers": (
        "def a():\n    dist.barrier()\ndef b():\n    dist.barrier()\nif dist.get_rank() == 0:\n    a()\nelse:\n    b()\n"
    ),
    "a loss that was reduced": (
        "model = DDP(net)\nfor x in xs:\n    loss = model(x).sum()\n    dist.all_reduce(loss)\n    if torch.isnan(loss):\n"
        "        continue\n    loss.backward()\n"
    ),
    "a flag that was reduced": (
        "model = DDP(net)\nfor x in xs:\n    loss = model(x).sum()\n    bad = torch.isnan(loss).float()\n    dist.all_reduce(bad)\n"
        "    if bad.item() > 0:\n        continue\n    loss.backward()\n"
    ),
    "a loss that decides only what is printed": (
        "model = DDP(net)\nloss = model(x).sum()\nif loss.item() > 5:\n    print(loss)\nloss.backward()\n"
    ),
    "a loss of a bare model": (
        "for x in xs:\n    loss = net(x).sum()\n    if torch.isnan(loss):\n        continue\n    loss.backward()\n"
    ),
    "uneven rounds within a join": (
        "model = DDP(net)\nwith model.join():\n    for i in range(dist.get_rank()):\n        model(x).sum().backward()\n"
    ),
    "an exit that fails ends the job": (
        "model = DDP(net)\nloss = model(x).sum()\nif not torch.isfinite(loss):\n    sys.exit(1)\nloss.backward()\n"
    ),
    "a loss that ends the job": (
        "model = DDP(net)\nloss = model(x).sum()\nif torch.isnan(loss):\n    raise ValueError\nloss.backward()\n"
    ),
    "drawn from one seed": (
        "import random\nrandom.seed(7)\nif random.random() < 0.5:\n    dist.all_reduce(x)\n"
    ),
    "a missing module": "try:\n    import apex\nexcept ImportError:\n    dist.barrier()\n",
    "the end of the data": (
        "while True:\n    try:\n        x = next(batches)\n    except StopIteration:\n        break\n    dist.all_reduce(x)\n"
    ),
    "a handler that makes the same call": (
        "try:\n    x = torch.load(name)\nexcept OSError:\n    dist.all_reduce(empty)\nelse:\n    dist.all_reduce(x)\n"
    ),
    "an error of a collective": (
        "try:\n    dist.monitored_barrier()\nexcept RuntimeError:\n    dist.all_reduce(x)\n"
    ),
    "an error that is raised again": (
        "model = DDP(net)\ntry:\n    model(x).sum().backward()\nexcept RuntimeError as error:\n    print(error)\n    raise\n"
    ),
    "rank 0 leaves where all leave": """\
        def fit(rank, patience):
            for epoch in range(9):
                if rank == 0:
                    if patience < 0:
                        break
                else:
                    if patience < 0:
                        break
                dist.barrier()
        fit(dist.get_rank(), 3)
        """,
    "no model is prepared on some": """\
        from accelerate import Accelerator
        from transformers import AutoTokenizer
        accelerator = Accelerator()
        if accelerator.is_main_process:
            tokenizer = accelerator.prepare(AutoTokenizer.from_pretrained("x"))
        """,
    "rank 0 sends word before it leaves": """\
        def update(grads, flag):
            if dist.get_rank() == 0:
                if not grads:
                    dist.broadcast(flag, 0)
                    return
                dist.broadcast(flag, 0)
            else:
                dist.broadcast(flag, 0)
        """,
    "ranks leave by what else is seen once the time is over": """\
        def update(names, limit):
            if time.time() > limit:
                if not names:
                    return
                print(names)
            dist.barrier()
        """,
    "rank 0 leaves where there is one rank": """\
        def update(grads):
            if dist.get_rank() == 0:
                if not dist.is_initialized():
                    return
                if dist.get_world_size() == 1:
                    return
            dist.barrier()
        """,
    "rank 0 leaves an inner loop, or after all collectives": """\
        def update(names):
            dist.barrier()
            if dist.get_rank() == 0:
                for name in names:
                    if name.startswith("_"):
                        break
                if not names:
                    return
                print(names)
        """,
    "one group on all": "g = dist.new_group([0, 1])\nif dist.get_rank() < 2:\n    dist.all_reduce(x, group=g)\n",
    "a group that its members make": (
        "if dist.get_rank() < 2:\n    dist.new_group([0, 1], use_local_synchronization=True)\n"
    ),
    "one list on both sides": (
        "if dist.get_rank() == 0:\n    a = dist.new_group([0, 1])\nelse:\n    b = dist.new_group([0, 1])\n"
    ),
}  # fmt: skip


@pytest.mark.right
@pytest.mark.parametrize("name", RIGHT)
def test_right_program_gives_nothing(name: str) -> None:
    assert lint(train=RIGHT[name]) == []
