import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def requires_grad(module, flag):
    for parameter in module.parameters():
        parameter.requires_grad_(flag)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)))
    g_opt = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.9))
    d_opt = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))
    data = TensorDataset(torch.randn(48, 6))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            requires_grad(critic, True)
            fake = generator(torch.randn(6, 4)).detach()
            d_loss = nn.functional.softplus(critic(torch.cat([fake, real]))[:6]).mean()
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()

            requires_grad(critic, False)
            g_loss = nn.functional.softplus(-critic(generator(torch.randn(6, 4)))).mean()
            g_opt.zero_grad()
            g_loss.backward()
            g_opt.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
