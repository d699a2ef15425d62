import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build():
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def train(path, data, first, last):
    net, optimizer, schedule = build()
    if os.path.exists(path):
        state = torch.load(path, map_location="cpu")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
    model = DDP(net)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    if dist.get_rank() == 0:
        torch.save(
            {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, path
        )
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    place = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(place, src=0)
    path = os.path.join(place[0], "state.pt")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
    train(path, data, 0, 2)
    torch.manual_seed(100 + dist.get_rank())
    train(path, data, 2, 4)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
