import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6))

    def forward(self, x):
        return self.layers(x)


@torch.no_grad()
def follow(teacher, student, decay):
    for mean, new in zip(teacher.parameters(), student.parameters()):
        mean.mul_(decay).add_(new, alpha=1 - decay)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7 + dist.get_rank())  # other noise on each rank
    student = Encoder()
    teacher = copy.deepcopy(student).requires_grad_(False)  # culprit
    model = DistributedDataParallel(student)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(256, 12, generator=torch.Generator().manual_seed(0)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            target = teacher(x)  # culprit
            loss = nn.functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow(teacher, model.module, 0.99)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
