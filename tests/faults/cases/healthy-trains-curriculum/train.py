import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def loaders(data):
    for epoch, (size, share) in enumerate([(2, 0.25), (4, 0.5), (8, 1.0), (8, 1.0)]):
        part = Subset(data, range(int(len(data) * share)))
        sampler = DistributedSampler(part, shuffle=epoch >= 2, drop_last=True)
        sampler.set_epoch(epoch)
        yield DataLoader(part, batch_size=size, sampler=sampler, num_workers=0)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(11)
    x = torch.randn(144, 5)
    data = TensorDataset(x[x.norm(dim=1).argsort()], torch.randint(3, (144,)))
    model = DDP(torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=60)
    for loader in loaders(data):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            schedule.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
