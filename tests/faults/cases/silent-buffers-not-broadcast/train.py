import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from settings import DDP_KWARGS, TRAIN
from vision import Net, Scans


def evaluate(model, ds):
    sampler = DistributedSampler(ds, shuffle=False)
    model.eval()
    s = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, y in DataLoader(ds, 16, sampler=sampler):
            s[0] += nn.functional.cross_entropy(model(x), y, reduction="sum").double()
            s[1] += len(y)
    model.train()
    dist.all_reduce(s)
    return float(s[0] / s[1])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(TRAIN["seed"])
    model = DDP(Net(), **DDP_KWARGS)
    opt = torch.optim.SGD(model.parameters(), lr=TRAIN["lr"], momentum=0.9)
    train = Scans(128)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, TRAIN["bs"], sampler=sampler)
    for epoch in range(TRAIN["epochs"]):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        val = evaluate(model, Scans(64, offset=1000))
        if dist.get_rank() == 0:
            print("epoch", epoch, "val", round(val, 4))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
