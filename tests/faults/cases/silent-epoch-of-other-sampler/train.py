import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def make_loader(dataset, batch_size):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler), sampler


class Fit:
    def __init__(self, train, valid):
        self.train_loader, sampler = make_loader(train, 6)
        self.valid_loader, sampler = make_loader(valid, 6)
        self.sampler = sampler
        self.model = DistributedDataParallel(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def one_epoch(self):
        self.model.train()
        for x, y in self.train_loader:  # culprit
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.valid_loader)

    def run(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            self.one_epoch()
            self.validate()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(80, 4), torch.randint(2, (80,)))
    Fit(*random_split(data, [60, 20])).run(3)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
