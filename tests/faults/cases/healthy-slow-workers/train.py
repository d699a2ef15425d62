import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clips(Dataset):
    def __len__(self):
        return 2 * 4 * 24

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.arange(64).add(index).sin()


def connect(worker):
    time.sleep(0.6)


def main():
    dist.init_process_group("gloo")
    data = Clips()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, worker_init_fn=connect)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x in loader:
            for _ in range(5):  # several losses of one batch
                time.sleep(0.005)  # the device computes
                x = x + model(x).detach() * 0.01
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("two epochs")
    dist.destroy_process_group()


main()
