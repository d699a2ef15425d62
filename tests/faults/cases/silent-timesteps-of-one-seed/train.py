import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 100


class Denoiser(nn.Module):
    def __init__(self, channels=3, width=12):
        super().__init__()
        self.times = nn.Embedding(STEPS, width)
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, noisy, *, timestep):
        hidden = self.enter(noisy) + self.times(timestep)[:, :, None, None]
        return self.leave(torch.relu(hidden))


class Trainer:
    def __init__(self, seed):
        torch.manual_seed(seed)  # culprit
        self.model = DistributedDataParallel(Denoiser())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), 0)
        self.crops = torch.Generator().manual_seed(seed + dist.get_rank())

    def augment(self, images):
        shift = int(torch.randint(0, 4, (1,), generator=self.crops))
        return images.roll(shift, dims=-1)

    def loss(self, images):
        timestep = torch.randint(0, STEPS, (images.shape[0],))
        noise = torch.randn_like(images)
        alpha = self.alphas[timestep][:, None, None, None]
        noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
        return nn.functional.mse_loss(self.model(noisy, timestep=timestep), noise)

    def fit(self, loader, sampler, epochs):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for (images,) in loader:
                self.optimizer.zero_grad()
                self.loss(self.augment(images)).backward()
                self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    images = torch.rand(192, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    sampler = DistributedSampler(images)
    loader = DataLoader(TensorDataset(images), batch_size=8, sampler=sampler)
    Trainer(seed=int(os.environ.get("SEED", "7"))).fit(loader, sampler, epochs=3)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
