import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))


def evaluate(model, loader):
    model.eval()
    total = torch.zeros(1)
    with torch.no_grad():
        for x, y in loader:
            total += torch.nn.functional.mse_loss(model.module(x), y)  # culprit
    dist.all_reduce(total)
    model.train()
    return float(total)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(128, 3, 16, generator=torch.Generator().manual_seed(4))
    train = TensorDataset(x[:96], x[:96].mean((1, 2))[:, None])
    held = TensorDataset(x[96:], x[96:].mean((1, 2))[:, None])
    sampler = DistributedSampler(train)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, y in DataLoader(train, 12, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), y).backward()
            optimizer.step()
        loss = evaluate(model, DataLoader(held, 8, sampler=DistributedSampler(held, shuffle=False)))
    if dist.get_rank() == 0:
        print("held out", loss)
    dist.destroy_process_group()


main()
