import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    team = rank // 2
    torch.manual_seed(team)
    model = DDP(torch.nn.Linear(4, 2), process_group=groups[team])
    optimizer = torch.optim.SGD(model.parameters(), lr=(0.1, 0.01)[team])
    data = TensorDataset(torch.arange(160.0).view(40, 4) / 100, torch.arange(40) % 2)
    sampler = DistributedSampler(data, num_replicas=2, rank=rank % 2)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.barrier()
    if rank == 0:
        print("done")
    dist.destroy_process_group()


main()
