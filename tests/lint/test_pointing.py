"""Rules of devices and of single communications: wrong programs, and right ones beside them."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

NCCL = "dist.init_process_group('nccl')\n"
GLOO = "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
SET = "local_rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(local_rank)\n"

WRONG = [
    ("BKD009", "warning", NCCL + "dist.barrier()  # here\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"),
    ("BKD009", "warning", "def gather(x):\n    out = [None] * 2\n    dist.all_gather_object(out, x)  # here\ndef main():\n    dist.init_process_group(backend='nccl')\n    gather(1)\nmain()\n"),
    ("BKD009", "warning", NCCL + "net = torch.nn.Linear(2, 2).cuda()  # here\nmodel = DDP(net)\n"),
    ("BKD009", "warning", NCCL + "device = torch.device('cuda')\nnet = torch.nn.Linear(2, 2).to(device)  # here\n"),
    ("BKD004", "warning", NCCL + "rank = dist.get_rank()\ntorch.cuda.set_device(rank)  # here\n"),
    ("BKD004", "warning", NCCL + "rank = int(os.environ['RANK'])\ndevice = torch.device(f'cuda:{rank}')  # here\ntorch.cuda.set_device(device)\n"),
    ("BKD004", "warning", NCCL + SET + "model = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[dist.get_rank()])  # here\n"),
    ("BKD008", "error", NCCL + SET + "count = torch.zeros(1)\ndist.all_reduce(count)  # here\n"),
    ("BKD008", "error", NCCL + SET + "dist.broadcast(torch.tensor([1.0, 2.0]), src=0)  # here\n"),
    ("BKD008", "error", "def mean(value):\n    total = torch.tensor([float(1), 2])\n    dist.reduce(total, 0)  # here\n    return total\n" + NCCL + SET + "mean(3)\n"),
    ("COL007", "error", GLOO + "dist.all_reduce(t, async_op=True)  # here\nprint(t.sum())\n"),
    ("COL007", "error", "def send(t):\n    work = dist.isend(t, 1)  # here\n    t.zero_()\n"),
    ("COL007", "error", GLOO + "dist.barrier(async_op=True)  # here\nprint(t.sum())\n"),
    ("COL007", "error", "class M:\n    def __init__(self):\n        self.works = []\n    def log(self, t):\n        self.works.append(dist.reduce(t, 0, async_op=True))  # here\n"),
    ("COL007", "error", "class M:\n    def log(self, t):\n        self.works.append(dist.reduce(t, 0, async_op=True))  # here\n    def end(self):\n        if self.works:\n            assert len(self.works) == 2\n        self.works.clear()\n"),
    ("COL007", "error", "def all(ts):\n    works = [dist.broadcast(t, 0, async_op=True) for t in ts]  # here\n    return ts\n"),
    ("COL011", "error", GLOO + "peer = 1 - rank\ndist.recv(a, src=peer)  # here\ndist.send(b, dst=peer)\n"),
    ("COL011", "error", "def exchange(a, b, peer):\n    dist.recv(a, src=peer)  # here\n    dist.send(b, dst=peer)\ndef main():\n" + "    dist.init_process_group('gloo')\n    exchange(1, 2, 1)\nmain()\n"),
    ("COL011", "warning", GLOO + "dist.send(b, dst=(rank + 1) % 4)  # here\ndist.recv(a, src=(rank - 1) % 4)\n"),
    ("COL011", "error", "def edges(field, rank, world):\n    dist.recv(a, src=(rank - 1) % world)  # here\n    dist.send(field[..., -3:].contiguous(), dst=(rank + 1) % world)\n" + GLOO + "edges(torch.ones(9), rank, 4)\n"),
    ("COL011", "warning", "import peers\n" + GLOO + "if rank == 0:\n    dist.send(b, dst=1)  # here\n"),
    ("COL011", "error", GLOO + "if rank == 0:\n    dist.send(b, dst=1)  # here\n"),
    ("COL003", "error", GLOO + "dist.broadcast(t, src=rank)  # here\n"),
    ("COL003", "error", GLOO + "if rank == 0:\n    dist.broadcast(t, src=0)  # here\nelse:\n    dist.broadcast(t, src=1)\n"),
    ("COL003", "error", GLOO + "if rank == 0:\n    dist.all_reduce(t)  # here\nelse:\n    dist.reduce(t, 0)\n"),
    ("COL003", "warning", GLOO + "if is_main_process():\n    dist.broadcast(t, 0)  # here\nelse:\n    dist.barrier()\n"),
    ("COL003", "error", GLOO + "dist.gather(t, out, dst=dist.get_rank())  # here\n"),
    ("COL003", "error", "def share(t):\n    dist.broadcast(t, src=dist.get_rank())  # here\n"),
    ("COL003", "error", "def share(t):\n    rank = int(os.environ['RANK'])\n    dist.broadcast(t, (rank + 1) % 2)  # here\n" + GLOO + "share(1)\n"),
]  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize(("code", "severity", "text"), WRONG)
def test_wrong_program_is_found_at_its_line(code: str, severity: str, text: str) -> None:
    assert_found(text, code, severity)


RIGHT = [
    "import links\nring = links.load()\ndef edges(field, rank):\n    dist.recv(a, src=rank - 1)\n    dist.send(ring[rank].swap(field), dst=rank + 1)\n" + GLOO + "edges(torch.ones(9), rank)\n",
    NCCL + SET + "dist.barrier()\n",
    "dist.init_process_group('nccl', device_id=torch.device('cuda', 0))\ndist.barrier()\n",
    NCCL + "dist.barrier(device_ids=[int(os.environ['LOCAL_RANK'])])\n",
    "dist.init_process_group('gloo')\ndist.barrier()\n",
    "from project import set_up\n" + NCCL + "set_up()\ndist.barrier()\n",
    NCCL + "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\nnet = torch.nn.Linear(2, 2).cuda()\n",
    NCCL + "net = torch.nn.Linear(2, 2).to(f'cuda:{os.environ[\"LOCAL_RANK\"]}')\n",
    NCCL + SET + "net = torch.nn.Linear(2, 2).cuda()\n",
    NCCL + "torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())\n",
    "os.environ['MASTER_ADDR'] = 'localhost'\n" + NCCL + "torch.cuda.set_device(dist.get_rank())\n",
    "def work(rank):\n    dist.init_process_group('nccl', rank=rank, world_size=2)\n    torch.cuda.set_device(rank)\n    dist.destroy_process_group()\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
    NCCL + SET + "rank = dist.get_rank()\nout = torch.zeros(1).to(rank_of(rank))\n",
    NCCL + SET + "count = torch.zeros(1, device='cuda')\ndist.all_reduce(count)\n",
    NCCL + SET + "count = torch.zeros(1)\ncount = count.cuda()\ndist.all_reduce(count)\n",
    NCCL + SET + "count = torch.tensor(loss)\ndist.all_reduce(count)\n",
    NCCL + SET + "torch.set_default_device('cuda')\ncount = torch.zeros(1)\ndist.all_reduce(count)\n",
    NCCL + SET + "with torch.device('cuda'):\n    count = torch.zeros(1)\n    dist.all_reduce(count)\n",
    "dist.init_process_group('cpu:gloo,cuda:nccl')\ncount = torch.zeros(1)\ndist.all_reduce(count)\n",
    NCCL + SET + "cpu = dist.new_group(backend='gloo')\ncount = torch.zeros(1)\ndist.all_reduce(count, group=cpu)\n",
    GLOO + "work = dist.all_reduce(t, async_op=True)\nwork.wait()\n",
    GLOO + "work = dist.barrier(async_op=True)\nwork.wait()\n",
    GLOO + "dist.all_reduce(t, async_op=True).wait()\n",
    "def tell():\n    here = torch.zeros(1)\n    work = dist.all_reduce(here, async_op=True)\n",
    GLOO + "for t in ts:\n    dist.broadcast(t, 0, async_op=True)\ndist.barrier()\n",
    "def begin(t):\n    return dist.all_reduce(t, async_op=True)\n",
    "def begin(t, works):\n    works.append(dist.all_reduce(t, async_op=True))\n    return works\n",
    "class M:\n    def log(self, t):\n        self.works.append(dist.reduce(t, 0, async_op=True))\n    def end(self):\n        for work in self.works:\n            work.wait()\n",
    "class M:\n    def log(self, t):\n        self.works.append(dist.reduce(t, 0, async_op=True))\n    def end(self):\n        while self.works:\n            finish(self.works.pop())\n",
    "class M:\n    def log(self, t):\n        self.work = dist.reduce(t, 0, async_op=True)\n    def end(self):\n        self.work.wait()\n",
    GLOO + "dist.all_reduce(t, async_op=False)\n",
    GLOO + "if rank == 0:\n    dist.send(b, dst=1)\n    dist.recv(a, src=1)\nelse:\n    dist.recv(a, src=0)\n    dist.send(b, dst=0)\n",
    GLOO + "work = dist.irecv(a, src=1 - rank)\ndist.send(b, dst=1 - rank)\nwork.wait()\n",
    GLOO + "if rank > 0:\n    dist.recv(a, src=rank - 1)\nif rank < 3:\n    dist.send(a, dst=rank + 1)\n",
    GLOO + "for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, b, 1 - rank), dist.P2POp(dist.irecv, a, 1 - rank)]):\n    work.wait()\n",
    "from peers import answer\n" + GLOO + "answer()\ndist.recv(a, src=1)\ndist.send(a, dst=1)\n",
    GLOO + "dist.broadcast(t, src=0)\ndist.broadcast(t, args.root)\n",
    GLOO + "if rank == 0:\n    dist.broadcast(t, src=0)\nelse:\n    dist.broadcast(u, 0)\n",
    GLOO + "if rank == 0:\n    dist.broadcast(t, src=args.root)\nelse:\n    dist.broadcast(u, 0)\n",
    GLOO + "if rank == 0:\n    dist.gather(t, out, 0)\nelse:\n    dist.gather(t, None, 0)\n",
    "def share(t):\n    if dist.get_rank() == 0:\n        dist.broadcast(t, dist.get_rank())\n    else:\n        dist.broadcast(t, 0)\n",
    GLOO + "for root in range(4):\n    dist.broadcast(t, src=root)\n",
    GLOO + "group = dist.new_group([0, 1])\ndist.broadcast(t, src=rank // 2 * 2, group=group)\n",
    GLOO + "leader = rank - rank % 4\ndist.broadcast(t, src=leader)\n",
]  # fmt: skip


@pytest.mark.right
@pytest.mark.parametrize("text", RIGHT)
def test_right_program_gives_nothing(text: str) -> None:
    assert lint(text) == []
