import torch
import torch.distributed as dist

def evaluate(batches):
    total = sum(batch.sum() for batch in batches)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.item()

dist.init_process_group("gloo")
rank = dist.get_rank()
evaluate([torch.ones(2)])
dist.destroy_process_group()
if rank == 0:
    print(evaluate([torch.ones(4)]))
