import torch.distributed as dist

_TENSOR_GROUP = None
_DATA_GROUP = None


def initialize_model_parallel(tensor_size):
    global _TENSOR_GROUP, _DATA_GROUP
    world, rank = dist.get_world_size(), dist.get_rank()
    for i in range(world // tensor_size):
        ranks = list(range(i * tensor_size, (i + 1) * tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TENSOR_GROUP = group
    for i in range(tensor_size):
        ranks = list(range(i, world, tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _DATA_GROUP = group


def tensor_group():
    return _TENSOR_GROUP


def data_group():
    return _DATA_GROUP
