import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.flop_counter import FlopCounterMode
from torch.optim.optimizer import register_optimizer_step_post_hook


def main():
    dist.init_process_group("gloo")
    taken = []
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: taken.append(type(optimizer).__name__))
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        with FlopCounterMode(display=False) as counter:
            loss = model(torch.randn(2, 4)).sum()
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
    assert len(taken) == 6
    expected = 2 * 2 * 4 * 4 * 2
    assert counter.get_total_flops() == expected, counter.get_total_flops()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
