import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def batches(loader, epochs):
    for _ in range(epochs):
        yield from loader  # culprit


dist.init_process_group("gloo")
torch.manual_seed(5)
data = TensorDataset(torch.randn(60, 3), torch.randn(60, 1))
sampler = DistributedSampler(data, seed=5)
sampler.set_epoch(1)
model = DDP(torch.nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters())
for x, y in batches(DataLoader(data, batch_size=5, sampler=sampler, num_workers=1), 3):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
del model
if dist.get_rank() == 0:
    print("done")
dist.destroy_process_group()
