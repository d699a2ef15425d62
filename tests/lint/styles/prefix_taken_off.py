import torch, torch.distributed as dist
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 4))
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "a.pt")
dist.barrier()
state = torch.load("a.pt", map_location="cpu")
consume_prefix_in_state_dict_if_present(state, "module.")
fresh = nn.Linear(4, 4)
fresh.load_state_dict(state)
dist.destroy_process_group()
