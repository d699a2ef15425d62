import copy

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def client(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def merge(state):
    for value in state.values():
        dist.all_reduce(value)
        value.div_(dist.get_world_size())
    return state


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(90, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    world_model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    for number in range(4):
        sampler.set_epoch(number)
        local = client(copy.deepcopy(world_model), loader)
        world_model.load_state_dict(merge(local.state_dict()))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
