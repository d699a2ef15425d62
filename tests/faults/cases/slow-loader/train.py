import torch
import torch.distributed as dist
from objects import Bucket, Pictures
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train_epoch(model, loader, optimizer):
    hits = total = 0
    for pixels, labels in loader:  # culprit
        scores = model(pixels)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (scores.argmax(1) == labels).sum().item()
        total += len(labels)
    return hits / total


if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = Pictures(Bucket(2 * 8 * 40))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    print(f"accuracy {train_epoch(model, loader, optimizer):.2f}")
    dist.destroy_process_group()
