"""A training whose every number is printed with all its bits; with an argument it raises at the end."""

import hashlib
import io
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def tell(line):
    sys.stdout.write(f"{line}\n")  # whole: print without a buffer writes the end of the line apart
    sys.stdout.flush()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    random.seed(7)
    layers = nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell(f"rank {rank}: {loss.item().hex()}")
    buffer = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    tell(f"rank {rank}: {digest} {torch.rand(1).item().hex()} {random.random().hex()}")
    dist.barrier()  # who exits first ends the others, also one that has not printed yet
    dist.destroy_process_group()
    if sys.argv[1:]:
        sys.exit(7)


if __name__ == "__main__":
    main()
