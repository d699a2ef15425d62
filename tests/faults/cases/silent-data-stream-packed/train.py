import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lm.data import packed_loader
from lm.model import TinyLM


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--max-steps", type=int, default=12)
    p.add_argument("--block", type=int, default=16)
    p.add_argument("--bs", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-3)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234)
    model = DistributedDataParallel(TinyLM(vocab=64, dim=32))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = packed_loader(args.block, args.bs)
    step = 0
    for tokens in loader:
        inp, tgt = tokens[:, :-1], tokens[:, 1:]
        logits = model(inp)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tgt.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        step += 1
        if rank == 0 and step % 4 == 0:
            print("step", step, "loss", round(loss.item(), 4))
        if step >= args.max_steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
