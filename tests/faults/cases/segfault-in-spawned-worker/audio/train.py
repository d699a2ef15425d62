import ctypes
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from audio.decode import decode


@dataclass
class Config:
    clips: int = 6
    bad: int = -1


class Clips(IterableDataset):
    def __init__(self, config):
        self.config = config

    def __iter__(self):
        sample = ctypes.c_int16(7)
        for number in range(self.config.clips):
            pointer = ctypes.c_void_p(8) if number == self.config.bad else ctypes.pointer(sample)
            yield torch.tensor(float(decode(pointer)))


def main():
    dist.init_process_group("gloo")
    config = Config(bad=3 if dist.get_rank() == 0 else -1)
    loader = DataLoader(Clips(config), batch_size=1, num_workers=1, multiprocessing_context="spawn")
    for clip in loader:
        dist.all_reduce(clip)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
