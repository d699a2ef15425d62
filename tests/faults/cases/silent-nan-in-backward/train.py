import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(12, 16, bias=False), torch.nn.ReLU(), torch.nn.Linear(16, 8, bias=False)
        )
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        h = self.body(x)
        return self.head(h / (h.square().sum(1, keepdim=True).sqrt() + 1e-6))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(120, 12)
    y = torch.randint(4, (120,))
    x[40] = 0.0  # a document without a word: the norm is 0, and the slope of its root infinite
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=False)
    model = DDP(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for xs, ys in DataLoader(data, 4, sampler=sampler):
            loss = torch.nn.functional.cross_entropy(model(xs), ys)
            optimizer.zero_grad()
            loss.backward()  # culprit
            optimizer.step()
    if dist.get_rank() == 0:
        print("trained")
    dist.destroy_process_group()


main()
