import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor


def load_full_state_dict(model, full_sd, mesh):
    meta_sd = model.state_dict()
    sharded_sd = {}
    if dist.get_rank() == 0:
        for (name, full_param), sharded_param in zip(full_sd.items(), meta_sd.values()):  # culprit
            full_param = full_param.detach().contiguous()
            dist.broadcast(full_param, src=0)  # culprit
            sharded_sd[name] = distribute_tensor(full_param, mesh, sharded_param.placements)
    else:
        for name, sharded_param in meta_sd.items():
            full_param = torch.empty(sharded_param.size(), dtype=sharded_param.dtype)
            dist.broadcast(full_param, src=0)
            sharded_sd[name] = distribute_tensor(full_param, mesh, sharded_param.placements)
    model.load_state_dict(sharded_sd, assign=True, strict=False)
    return model
