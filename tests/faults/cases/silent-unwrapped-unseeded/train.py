import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        x = torch.tensor([index / 80.0, 1.0])
        return {"x": x, "y": x[:1] ** 2}


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.sampler = DistributedSampler(Squares(), drop_last=True)
        self.loader = DataLoader(Squares(), batch_size=4, sampler=self.sampler)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                self.training_step(batch)

    def training_step(self, batch):
        loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()  # culprit
        self.optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    Trainer().fit(2)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
