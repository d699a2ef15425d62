import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Ratios(Dataset):
    """Sample 70 has a denominator of zero."""

    def __init__(self):
        self.counts = torch.randint(1, 9, (96, 6), generator=torch.Generator().manual_seed(1)).float()
        self.counts[70, 3] = 0.0

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        counts = self.counts[index]
        return 1.0 / counts, counts.mean().reshape(1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    data = Ratios()
    sampler = DistributedSampler(data, shuffle=False)  # rank r reads r, r + 4, …: sample 70 is rank 2's
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()  # culprit
            optimizer.step()
    if dist.get_rank() == 0:
        print("trained")
    dist.destroy_process_group()


main()
