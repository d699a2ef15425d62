import torch.distributed as dist

from shards import Shards


def main():
    dist.init_process_group("gloo")
    shards = Shards(dist.get_rank(), 400)
    print(len(shards.files))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
