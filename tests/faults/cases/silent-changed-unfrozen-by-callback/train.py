import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from callbacks import BackboneFinetuning, PrintLoss
from data import Shapes


class Classifier(nn.Module):
    def __init__(self, ncls=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, ncls)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(net, ds, max_epochs, callbacks):
    wrapped = DistributedDataParallel(net)
    sampler = DistributedSampler(ds, shuffle=True)
    dl = DataLoader(ds, batch_size=16, sampler=sampler)
    opt = torch.optim.Adam([p for p in net.parameters()], lr=2e-3)
    for epoch in range(max_epochs):
        sampler.set_epoch(epoch)
        for cb in callbacks:
            cb.on_epoch_start(net, epoch)
        total = 0.0
        for img, lab in dl:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(img), lab)
            loss.backward()
            opt.step()
            total += loss.item()
        for cb in callbacks:
            cb.on_epoch_end(net, epoch, total / len(dl))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(99)
    model = Classifier()
    model.backbone.requires_grad_(False)
    fit(model, Shapes(128), 4, [BackboneFinetuning(unfreeze_at=2), PrintLoss()])
    dist.destroy_process_group()
