"""Rules of how ranks are started, of settings and of where ranks meet: wrong programs, and right ones beside them."""

from __future__ import annotations

import json

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.gather import judge_scripts
from tests.lint.judging import RULES, assert_found, lint

WRONG = [
    ("ENV007", "error", "p = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)  # here\nargs = p.parse_args()\n"),
    ("ENV007", "error",
     """\
     class Options:
         def __init__(self):
             self.parser = argparse.ArgumentParser()
             self.parser.add_argument("--epochs", type=int)
             self.parser.add_argument("--local_rank", default=-1, type=int)  # here
     dist.init_process_group("nccl")
     """),
    ("ENV007", "warning", "def parse():\n    p = argparse.ArgumentParser()\n    g = p.add_argument_group('ddp')\n    g.add_argument('-l', '--local-rank', default=0)  # here\n    return p.parse_args()\n"),
    ("ENV017", "error", "def work(rank):\n    dist.init_process_group('gloo')\nmp.spawn(work, nprocs=2)  # here\n"),
    ("ENV017", "error", "def work(rank):\n    pass\ndef main():\n    mp.spawn(work, nprocs=2)\nmain()  # here\n"),
    ("ENV017", "error",
     """\
     def work(rank):
         dist.init_process_group("gloo")
     mp.set_start_method("spawn")
     for rank in range(2):
         process = mp.Process(target=work, args=(rank,))  # here
         process.start()
     """),
    ("ENV017", "error", "def work(rank):\n    pass\ncontext = mp.get_context('spawn')\nworkers = [context.Process(target=work, args=(i,)) for i in range(2)]  # here\n"),
    ("ENV019", "error", "rank = dist.get_rank()  # here\ndist.init_process_group('nccl')\n"),
    ("ENV019", "error",
     """\
     def make(data):
         return DistributedSampler(data)  # here
     def main():
         sampler = make(list(range(10)))
         dist.init_process_group("gloo")
     if __name__ == "__main__":
         main()
     """),
    ("ENV019", "error", "class Trainer:\n    def __init__(self, net):\n        self.net = DDP(net)  # here\n        dist.init_process_group('gloo')\ntrainer = Trainer(torch.nn.Linear(2, 2))\n"),
    ("ENV019", "error", "def start():\n    dist.init_process_group('gloo')\nstart()\ndist.init_process_group('gloo')  # here\n"),
    ("ENV019", "error", "def work(rank):\n    dist.init_process_group('gloo')\n    dist.barrier()\n    dist.init_process_group('gloo')  # here\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"),
    ("ENV019", "error", "def start(args):\n    if not args.many:\n        return\n    helper.prepare(args)\n    dist.init_process_group('gloo')\n    dist.init_process_group('gloo')  # here\nstart(parse())\n"),
    ("ENV014", "warning", "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'  # here\ndist.init_process_group('nccl')\n"),
    ("ENV014", "warning", "def main():\n    os.environ.setdefault('TORCH_DISTRIBUTED_DEBUG', 'DETAIL')  # here\n    dist.init_process_group('gloo')\nmain()\n"),
    ("ENV014", "warning", "torch.autograd.set_detect_anomaly(True)  # here\ndist.init_process_group('gloo')\n"),
    (
        "ENV014", "warning", "if args.many:\n    torch.autograd.set_detect_anomaly(True)  # here\n    dist.init_process_group('gloo')\n",
    ),
    ("ENV014", "warning", "dist.init_process_group('gloo')\nwith torch.autograd.detect_anomaly():  # here\n    for x in y:\n        x.backward()\n"),
    ("ENV014", "warning", "dist.init_process_group('nccl')\nnet = torch.nn.Linear(2, 2).cuda(args.gpu)\nos.environ.update(CUDA_LAUNCH_BLOCKING='1')  # here\n"),
    ("ENV014", "warning", "LOCAL_RANK = -1\ndef enable():\n    global LOCAL_RANK\n    if LOCAL_RANK >= 0:\n        raise RuntimeError('twice')\n    torch.autograd.set_detect_anomaly(True)  # here\n    dist.init_process_group('gloo')\n    LOCAL_RANK = 0\nenable()\n"),
    ("ENV014", "warning", "def start():\n    if dist.is_available() and dist.is_initialized():\n        print('twice')\n    else:\n        torch.autograd.set_detect_anomaly(True)  # here\n        dist.init_process_group('gloo')\nstart()\n"),
    ("NET009", "error", "os.environ['MASTER_PORT'] = '99999'  # here\n"),
    ("NET009", "error", "os.environ['MASTER_PORT'] = os.environ.get('MASTER_PORT', '72345')  # here\n"),
    ("NET009", "error", "os.environ['MASTER_PORT'] = args.port if args.port else '72345'  # here\n"),
    ("NET009", "error", "PORT = 70000\ndist.init_process_group('gloo', init_method=f'tcp://localhost:{PORT}', rank=0, world_size=2)  # here\n"),
    ("NET009", "error", "parser.add_argument('--dist-url', default='tcp://localhost:72345')  # here\n"),
    ("NET009", "warning", "store = dist.TCPStore('node1', 80, 2, True)  # here\n"),
    ("NET010", "warning", "dist.init_process_group('gloo', init_method='file:///tmp/rendezvous', rank=r, world_size=2)  # here\n"),
    ("NET010", "warning", "PATH = os.path.join('/shared', 'job')\ndef setup(rank):\n    dist.init_process_group('gloo', 'file://' + PATH, rank=rank, world_size=4)  # here\n"),
    ("NET010", "warning", "store = dist.FileStore('/tmp/store', 2)  # here\n"),
]  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize(("code", "severity", "text"), WRONG)
def test_wrong_program_is_found_at_its_line(code: str, severity: str, text: str) -> None:
    assert_found(text, code, severity)


RIGHT = [
    "p = argparse.ArgumentParser()\np.add_argument('--local-rank', '--local_rank', type=int)\n",
    "p = argparse.ArgumentParser()\np.add_argument('--local_rank', default=int(os.environ.get('LOCAL_RANK', 0)))\n",
    "p = argparse.ArgumentParser()\np.add_argument('--local_rank')\nargs, rest = p.parse_known_args()\n",
    "import deepspeed\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n",
    "def work(rank):\n    pass\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
    "def work(rank):\n    pass\ndef main():\n    mp.spawn(work, nprocs=2)\nif '__main__' == __name__:\n    main()\n",
    "def work(rank):\n    pass\nmp.Process(target=work).start()\n",
    "def work(rank):\n    pass\nmp.start_processes(work, nprocs=2, start_method='fork')\n",
    "def work(rank):\n    pass\nif __name__ != '__main__':\n    sys.exit()\nmp.spawn(work, nprocs=2)\n",
    "dist.init_process_group('gloo')\nrank = dist.get_rank()\nsampler = DistributedSampler(range(3))\n",
    "sampler = DistributedSampler(range(3), num_replicas=2, rank=0)\ndist.init_process_group('gloo')\n",
    "from project import setup\nsetup()\nrank = dist.get_rank()\nif not dist.is_initialized():\n    dist.init_process_group('gloo')\n",
    "rank = dist.get_rank() if dist.is_initialized() else 0\ndist.init_process_group('gloo')\n",
    "dist.init_process_group('gloo')\ndist.destroy_process_group()\ndist.init_process_group('gloo')\n",
    "def f():\n    return dist.get_world_size()\ndist.init_process_group('gloo')\nprint(f())\n",
    "try:\n    dist.init_process_group('nccl')\nexcept RuntimeError:\n    dist.init_process_group('gloo')\n",
    "if args.gpu:\n    dist.init_process_group('nccl')\nif not args.gpu:\n    dist.init_process_group('gloo')\n",
    "dist.init_process_group('nccl')\nhelper.again()\ndist.init_process_group('gloo')\n",
    "for backend in ('gloo', 'nccl'):\n    dist.init_process_group(backend)\n    dist.destroy_process_group()\n",
    "if args.debug:\n    os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\ndist.init_process_group('nccl')\n",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '0'\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'\ndist.init_process_group('nccl')\n",
    "with torch.autograd.detect_anomaly():\n    loss.backward()\ndist.init_process_group('gloo')\n",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\ndel os.environ['CUDA_LAUNCH_BLOCKING']\ndist.init_process_group('nccl')\n",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\ndist.init_process_group('gloo')\n",
    "torch.autograd.set_detect_anomaly(False)\ntorch.autograd.set_detect_anomaly(args.debug)\ndist.init_process_group('nccl')\n",
    "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\nnet = torch.nn.Linear(2, 2).cuda()\n",
    "os.environ['MASTER_PORT'] = '29500'\nstore = dist.TCPStore('node1', port=0)\n",
    "os.environ['MASTER_PORT'] = str(args.port)\ndist.init_process_group('gloo', init_method=f'tcp://localhost:{args.port}')\n",
    "os.environ['SOME_PORT'] = '99999'\n",
    "import tempfile\nname = tempfile.mktemp()\ndist.init_process_group('gloo', init_method='file://' + name)\n",
    "if os.environ['RANK'] == '0':\n    os.remove('/tmp/x')\ndist.init_process_group('gloo', init_method='file:///tmp/x')\n",
    "dist.init_process_group('gloo', init_method=f'file:///tmp/{args.job}')\n",
]  # fmt: skip


@pytest.mark.right
@pytest.mark.parametrize("text", RIGHT)
def test_right_program_gives_nothing(text: str) -> None:
    assert lint(text) == []


def test_option_is_a_suspicion_where_modules_of_others_may_read_the_environment() -> None:
    text = (
        "from project import setup\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\nsetup()\n"
    )
    assert [(each.code, each.severity) for each in lint(text)] == [("ENV007", "warning")]


def test_option_is_right_where_another_file_reads_the_environment() -> None:
    text = "import setup\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n"
    assert lint(text, setup="local = int(os.environ['LOCAL_RANK'])\n") == []


@pytest.mark.parametrize("own", [True, False])
def test_function_of_a_notebook_cannot_be_spawned(own: bool) -> None:
    where = "def work(rank):\n    pass" if own else "from train import work"
    cells = ["import torch.multiprocessing as mp\n" + where, "mp.spawn(work, nprocs=2)"]
    book = {"cells": [{"cell_type": "code", "source": each} for each in cells]}
    (row,) = judge_scripts([parse_script(json.dumps(book).encode(), "a.ipynb", notebook=True)], RULES)
    found = [(fact.rule, fact.place.cell, fact.place.line) for fact in row.facts]
    assert found == ([("spawn-in-notebook", 2, 1)] if own else [])
