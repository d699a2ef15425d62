import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(8)
        z = torch.randn(n, 6, generator=g)
        self.img = z @ torch.randn(6, 20, generator=g)
        self.txt = z @ torch.randn(6, 14, generator=g)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return {"image": self.img[i], "text": self.txt[i]}


class DualEncoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, dim))
        self.textual = nn.Linear(14, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, image, text):
        return F.normalize(self.visual(image), dim=-1), F.normalize(self.textual(text), dim=-1), self.logit_scale.exp()


def concat_all(t):
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t.contiguous())  # culprit
    return torch.cat(parts)  # culprit


def clip_loss(img, txt, scale):
    all_img, all_txt = concat_all(img), concat_all(txt)  # culprit
    labels = torch.arange(img.size(0)) + img.size(0) * dist.get_rank()
    return 0.5 * (F.cross_entropy(scale * img @ all_txt.t(), labels) + F.cross_entropy(scale * txt @ all_img.t(), labels))


def train(epochs=3):
    torch.manual_seed(3)
    model = DDP(DualEncoder())
    ds = Pairs()
    sampler = DistributedSampler(ds, drop_last=True)
    loader = DataLoader(ds, batch_size=16, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for ep in range(epochs):
        sampler.set_epoch(ep)
        for b in loader:
            loss = clip_loss(*model(b["image"], b["text"]))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print("epoch", ep, "loss", f"{loss.item():.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    try:
        train()
    finally:
        dist.destroy_process_group()
