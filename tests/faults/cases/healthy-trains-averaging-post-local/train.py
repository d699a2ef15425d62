import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = DistributedDataParallel(torch.nn.Linear(4, 3))
    state = post_local.PostLocalSGDState(process_group=None, subgroup=pairs[rank // 2], start_localSGD_iter=3)
    model.register_comm_hook(state, post_local.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=0.1),
        averager=PeriodicModelAverager(period=5, warmup_steps=3),
    )
    for _ in range(15):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        print("done")
    dist.barrier()
    dist.destroy_process_group()


main()
