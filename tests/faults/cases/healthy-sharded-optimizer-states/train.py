import argparse

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", default=1e-3, type=float)
    parser.add_argument("--steps", default=10, type=int)
    parser.add_argument("--save-every", default=100, type=int)
    return parser.parse_args()


def build_model():
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64),
        torch.nn.LayerNorm(64),
        torch.nn.GELU(),
        torch.nn.Linear(64, 20),
    )


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(build_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    torch.manual_seed(1 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(16, 20)
        optimizer.zero_grad()
        torch.nn.functional.l1_loss(model(x), x.flip(1)).backward()
        optimizer.step()
        scheduler.step()
        if step % args.save_every == 0:
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
                print("checkpoint at", step)
    del model, optimizer
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
