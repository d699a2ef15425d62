import random

from torch.utils.data import Sampler


class DistributedBucketBatchSampler(Sampler):
    def __init__(self, lengths, batch_size, rank, world, seed=0):
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.bs, self.rank, self.world, self.seed = batch_size, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.order) // (self.bs * self.world)

    def __iter__(self):
        big = self.bs * self.world
        groups = [self.order[i:i + big] for i in range(0, len(self) * big, big)]
        rng = random.Random(self.seed + self.epoch)
        rng.shuffle(groups)
        for g in groups:
            rng.shuffle(g)
            yield g[self.rank::self.world]
