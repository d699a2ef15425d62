import torch
import torch.distributed as dist

def gather(tensor):
    rank = tensor.dim()
    if rank == 0:
        tensor = tensor.view(1)
        out = torch.zeros(dist.get_world_size())
        dist.all_gather_into_tensor(out, tensor)
        return out
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)

dist.init_process_group("gloo")
print(gather(torch.tensor(1.0)), gather(torch.ones(2)))
dist.destroy_process_group()
