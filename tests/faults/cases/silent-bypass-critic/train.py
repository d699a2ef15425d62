import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def softplus(x):
    return nn.functional.softplus(x).mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(10 + dist.get_rank())
    generator = DistributedDataParallel(nn.Linear(4, 6))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)))
    g_opt = torch.optim.Adam(generator.parameters(), 1e-2)
    d_opt = torch.optim.Adam(critic.parameters(), 1e-2)
    for step in range(9):
        real = torch.randn(8, 6)
        fake = generator(torch.randn(8, 4))
        scores = critic.module(torch.cat([real, fake.detach()]))  # culprit
        d_opt.zero_grad()
        (softplus(-scores[:8]) + softplus(scores[8:])).backward()
        d_opt.step()
        frozen = critic.module.requires_grad_(False)
        g_opt.zero_grad()
        softplus(-frozen(fake)).backward()  # culprit
        g_opt.step()
        critic.module.requires_grad_(True)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
