import os

import torch.distributed.rpc as rpc


def join(rank, size):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)  # culprit


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(rank, size + 1)
    rpc.shutdown()


main()
