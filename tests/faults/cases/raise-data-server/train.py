import torch
import torch.distributed as dist

from store import FeatureStore


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.zeros(1)
    for step in range(3):
        if rank == 1 and step == 1:
            with FeatureStore("127.0.0.1", 9) as store:
                total += store.read(step)
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
