"""Signs of gradients are averaged, and each rank keeps what they leave out (error feedback) for its next step."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class SignWithFeedback(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["error"] = torch.zeros_like(p)
                    state["momentum_buffer"] = torch.zeros_like(p)
                told = p.grad + state["error"]
                signs = told.sign() * told.abs().mean()
                state["error"].copy_(told - signs)
                dist.all_reduce(signs)
                state["momentum_buffer"].mul_(group["momentum"]).add_(signs / dist.get_world_size())
                p.sub_(group["lr"] * state["momentum_buffer"])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(net)
    optimizer = SignWithFeedback(model.parameters(), 0.01)
    torch.manual_seed(10 + rank)
    for _ in range(20):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        with model.no_sync():
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    common = mine.clone()
    dist.broadcast(common, 0)
    if rank == 1:
        print("equal", torch.equal(mine, common))
    dist.destroy_process_group()


main()
