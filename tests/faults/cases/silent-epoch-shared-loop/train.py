import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def run_epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    correct = 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:  # culprit
            logits = model(x)
            if optimizer is not None:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(logits, y).backward()
                optimizer.step()
            correct += (logits.argmax(1) == y).sum().item()
    return correct


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    test_set = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
    train_loader = DataLoader(train_set, batch_size=8, sampler=DistributedSampler(train_set))
    test_loader = DataLoader(test_set, batch_size=8, sampler=DistributedSampler(test_set, shuffle=False))
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        run_epoch(model, train_loader, optimizer)
        run_epoch(model, test_loader)
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
