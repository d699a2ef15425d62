import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return {"inputs": torch.full((4,), float(i)) / 60, "labels": torch.tensor(i % 3)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, inputs, labels=None):
        logits = self.fc(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_epoch(model, loader, optimizer):
    for batch in loader:  # culprit
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters())
    train_epoch(model, DataLoader(Rows(), batch_size=5, num_workers=1), optimizer)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
