"""all_gather of tensors that require a gradient, each time in a way that is right."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, z)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def put_back(z):
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z)
    parts[dist.get_rank()] = z
    return torch.cat(parts)


def write_back(z):
    whole = z.new_empty(dist.get_world_size() * len(z), z.shape[1])
    with torch.no_grad():
        dist.all_gather_into_tensor(whole, z)
    whole[dist.get_rank() * len(z) : (dist.get_rank() + 1) * len(z)] = z
    return whole


def contrast(one, others):
    return F.cross_entropy(one @ others.t() * 5, torch.arange(len(one)) + len(one) * dist.get_rank())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(dist.get_rank() + 1)
    ways = (Gather.apply, put_back, write_back, lambda z: put_back(z.detach()).detach())
    for step in range(12):
        x = torch.randn(8, 16)
        z = F.normalize(model(torch.cat([x, x + 0.1])), dim=1)
        one, other = z.chunk(2)
        if step % 5 == 4:
            loss = checkpoint(lambda a, b: contrast(a, put_back(b)), one, other, use_reentrant=False)
        else:
            loss = contrast(one, ways[step % 4](other))
        seen = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(seen, one)  # for the spread of the features, which is only logged
        spread = torch.cat(seen).std(0).mean()
        target = (one.detach() - other).square().mean()
        optimizer.zero_grad()
        (loss + target).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}, spread {spread.item():.3f}")
    dist.destroy_process_group()


main()
