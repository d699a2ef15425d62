import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


class Curves(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(count, 8, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.inputs[index].sum(0, keepdim=True)


def evaluate(model, loader):
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in loader:
            total += torch.tensor([(model(inputs) - targets).abs().sum(), len(inputs)])
    dist.all_reduce(total)
    return total[0] / total[1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # culprit
    train, validation = random_split(Curves(480), [400, 80])  # culprit
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, 16, sampler=sampler)
    validation_loader = DataLoader(validation, 16, sampler=DistributedSampler(validation, shuffle=False))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            (model(inputs) - targets).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        error = evaluate(model.module, validation_loader)
        if rank == 0:
            print(f"epoch {epoch} error {error:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
