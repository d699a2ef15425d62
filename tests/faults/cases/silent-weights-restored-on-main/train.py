import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from engine import Checkpointer, is_main, loop


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--work-dir", default="work")
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--iters", type=int, default=10)
    return p.parse_args()


def make_pretrained(path):
    torch.manual_seed(77)
    net = build()
    torch.save({"model": net.state_dict(), "it": 100}, path)


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def main():
    args = get_args()
    dist.init_process_group("gloo")
    path = os.path.join(args.work_dir, "last.pt")
    if is_main():
        os.makedirs(args.work_dir, exist_ok=True)
        make_pretrained(path)
    dist.barrier()
    torch.manual_seed(args.seed)
    model = DDP(build())
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    ckpt = Checkpointer(path, model.module)
    start = ckpt.maybe_restore()
    start_t = torch.tensor(start)
    dist.broadcast(start_t, 0)
    loop(model, opt, int(start_t), int(start_t) + args.iters)
    if is_main():
        torch.save({"model": model.module.state_dict()}, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
