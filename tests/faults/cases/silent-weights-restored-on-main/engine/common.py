import torch.distributed as dist


def is_main():
    return dist.get_rank() == 0
