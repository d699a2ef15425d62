import torch
from torch import nn
from torch.utils.data import Dataset


class Scans(Dataset):
    def __init__(self, n, offset=0):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.offset + i)
        y = i % 3
        return torch.randn(1, 10, 10, generator=g) * (1 + 0.5 * y) + y, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.h = nn.Linear(6, 3)

    def forward(self, x):
        return self.h(self.f(x).mean((2, 3)))
