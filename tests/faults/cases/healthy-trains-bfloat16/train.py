import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(8, 4).to(torch.bfloat16))
    other = DDP(torch.nn.Linear(4, 2))
    other.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.05)
    for step in range(9):
        x = torch.randn(4, 8, dtype=torch.bfloat16)
        loss = other(model(x).float()).square().sum()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
