import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


def run_epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(42)
    x = torch.randn(80, 4, generator=generator)
    train_set, test_set = random_split(TensorDataset(x, (x.sum(1) > 0).long()), [64, 16], generator=generator)
    sampler = DistributedSampler(train_set, seed=42)
    train_loader = DataLoader(train_set, batch_size=8, sampler=sampler, num_workers=1, persistent_workers=True)
    test_loader = DataLoader(test_set, batch_size=4)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        run_epoch(model, train_loader, optimizer)
        scheduler.step(run_epoch(model, test_loader))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
