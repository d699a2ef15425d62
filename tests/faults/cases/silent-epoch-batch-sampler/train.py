import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset


def build_loader(dataset, batch_size):
    batches = BatchSampler(DistributedSampler(dataset), batch_size, drop_last=True)
    return DataLoader(dataset, batch_sampler=batches)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = build_loader(TensorDataset(torch.randn(50, 4)), 5)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < 14:
        for (x,) in loader:  # culprit
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
            step += 1
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
