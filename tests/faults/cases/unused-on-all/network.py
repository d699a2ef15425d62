from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.auxiliary = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.stem(x).relu())
