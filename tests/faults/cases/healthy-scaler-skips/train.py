"""Batches that overflow now and then: the scaler skips them on all ranks, and training goes on."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=8)
    x = torch.randn(120, 8, generator=torch.Generator().manual_seed(2))
    x[50] *= 1e30
    sampler = DistributedSampler(TensorDataset(x), shuffle=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (batch,) in DataLoader(sampler.dataset, 4, sampler=sampler, num_workers=1):
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    if rank == 0:
        print("finite", all(bool(p.isfinite().all()) for p in model.parameters()))
    dist.destroy_process_group()


main()
