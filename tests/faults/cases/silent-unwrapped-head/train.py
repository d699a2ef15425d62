import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    encoder = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU()))
    head = nn.Linear(12, 2)
    optimizer = torch.optim.SGD(list(encoder.parameters()) + list(head.parameters()), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.randint(2, (64,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(encoder(x)), y).backward()
            optimizer.step()  # culprit
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
