import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(48, 4, generator=generator), torch.randn(48, 2, generator=generator))
    sampler = DistributedSampler(data, num_replicas=args.world_size, rank=args.rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:  # culprit
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
