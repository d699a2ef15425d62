import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from clips import ClipDataset


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 8, 9, stride=4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, wav):
        return self.net(wav)


def fit(model, ds, epochs):
    sampler = DistributedSampler(ds, shuffle=False)
    loader = DataLoader(ds, batch_size=6, sampler=sampler, num_workers=1)
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for n, (wav, tag) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(wav), tag)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if dist.get_rank() == 0:
                print(f"{epoch}/{n} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    fit(DDP(Tagger()), ClipDataset(96), 2)
    dist.destroy_process_group()
