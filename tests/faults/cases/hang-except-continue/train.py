import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(rank):
    for index in range(10):
        yield torch.ones(2, 3 if (rank, index) == (1, 6) else 4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(4, 1))
    for batch in batches(rank):
        try:
            model(batch).sum().backward()
        except RuntimeError as error:  # culprit
            print(f"rank {rank} leaves a batch out: {error}")
            continue
    dist.all_gather_object([None] * dist.get_world_size(), rank)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
