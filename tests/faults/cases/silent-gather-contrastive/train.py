import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def gather(z):
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z)  # culprit
    return torch.cat(parts)


def contrast(one, other, temperature=0.2):
    others = gather(other)
    logits = one @ others.t() / temperature
    target = torch.arange(len(one)) + len(one) * dist.get_rank()
    return F.cross_entropy(logits, target)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(12):
        x = torch.randn(8, 16)
        z = F.normalize(model(torch.cat([x, x + 0.1 * torch.randn_like(x)])), dim=1)
        loss = contrast(*z.chunk(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


main()
