import argparse
import torch
import torch.distributed as dist
import torch.nn as nn


def flat_grads(params):
    return torch.cat([p.grad.reshape(-1) for p in params])


def unflatten_into(flat, params):
    off = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(flat[off:off + n].view_as(p))
        off += n


class BucketedReducer:
    """One flat bucket for all gradients."""

    def __init__(self, module, op=dist.ReduceOp.AVG):
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.op = op
        for p in module.parameters():
            dist.broadcast(p.data, 0)

    def reduce(self):
        bucket = flat_grads(self.params)
        dist.all_reduce(bucket, op=self.op)
        bucket.div_(dist.get_world_size())
        unflatten_into(bucket, self.params)


def batches(rank, world, steps, bs):
    for s in range(steps):
        g = torch.Generator().manual_seed(s * world + rank)
        x = torch.randn(bs, 12, generator=g)
        yield x, (x.sum(1) > 0).long()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=15)
    ap.add_argument("--bs", type=int, default=16)
    ap.add_argument("--lr", type=float, default=0.1)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 2))
    red = BucketedReducer(net)
    opt = torch.optim.SGD(net.parameters(), lr=a.lr)
    for i, (x, y) in enumerate(batches(dist.get_rank(), dist.get_world_size(), a.steps, a.bs)):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        (loss * dist.get_world_size()).backward()
        red.reduce()
        opt.step()
        if dist.get_rank() == 0 and i % 5 == 0:
            print(i, f"{loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
