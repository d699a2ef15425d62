import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def mean_hook(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for hook in (mean_hook, allreduce_hook):
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for _ in range(3 + dist.get_rank()):
                optimizer.zero_grad()
                model(torch.randn(2, 4, generator=generator)).sum().backward()
                optimizer.step()
        del model
    print("hooked")
    dist.destroy_process_group()


main()
