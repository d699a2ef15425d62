import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class PreparedLoader(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():  # culprit
            yield tuple(batch)


class Kit:
    def __init__(self):
        dist.init_process_group("gloo")
        self.is_main = dist.get_rank() == 0

    def prepare(self, net, optimizer, loader):
        sampler = DistributedSampler(loader.dataset, shuffle=True, seed=1)
        loader = PreparedLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler)
        return DistributedDataParallel(net), optimizer, loader

    def backward(self, loss):
        loss.backward()

    def close(self):
        dist.destroy_process_group()
