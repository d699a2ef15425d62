import torch
import torch.distributed as dist

def reduce(tensors):
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
    manager.wait()
