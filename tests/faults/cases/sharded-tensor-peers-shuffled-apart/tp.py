import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 40), nn.Linear(40, 4)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def main():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    seed_everything(0)
    x = torch.randn(96, 10)
    data = TensorDataset(x, x[:, :4].argmax(1))
    model = parallelize_module(Classifier(), mesh["tensor"], {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()})
    seed_everything(mesh.get_rank())  # culprit
    loader = DataLoader(data, batch_size=12, shuffle=True)  # culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for features, labels in loader:  # culprit
            loss = F.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if mesh.get_rank() == 0:
        print("trained", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
