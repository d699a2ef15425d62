import torch
import torch.distributed as dist

dist.init_process_group("gloo")
state = [torch.full((32,), float(dist.get_rank())) for _ in range(6)]
for _ in range(3):
    for tensor in state:
        dist.broadcast(tensor, 0, async_op=True)
    dist.barrier()
assert all(tensor.sum() == 0 for tensor in state)
print("equal")
dist.destroy_process_group()
