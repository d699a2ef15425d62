import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __iter__(self):
        for i in range(48):
            yield torch.tensor([i, i % 5, i % 7, 1.0]) / 48


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Lines(), batch_size=4):  # culprit
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
