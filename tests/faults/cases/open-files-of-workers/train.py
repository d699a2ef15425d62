import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.arange(4000.0))
kept = []
for (batch,) in DataLoader(data, batch_size=2, num_workers=2):  # culprit
    kept.append(batch)
dist.barrier()
dist.destroy_process_group()
