import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class DiLoCo:
    def __init__(self, model, sync_every, outer_lr):
        self.model, self.sync_every = model, sync_every
        self.global_params = [p.detach().clone() for p in model.parameters()]
        for p in self.global_params:
            p.requires_grad_(True)
        self.outer = torch.optim.SGD(self.global_params, lr=outer_lr, momentum=0.9, nesterov=True)

    @torch.no_grad()
    def maybe_sync(self, inner_step):
        if inner_step == 0 or inner_step % self.sync_every != 0:  # culprit
            return False
        for shared, local in zip(self.global_params, self.model.parameters()):
            delta = shared - local
            dist.all_reduce(delta)
            shared.grad = delta / dist.get_world_size()
        self.outer.step()
        for shared, local in zip(self.global_params, self.model.parameters()):
            local.copy_(shared)
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sync-every", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=4e-3)
    diloco = DiLoCo(model, args.sync_every, outer_lr=0.7)
    data = torch.Generator().manual_seed(rank)
    total = 0
    for _ in range(args.rounds):
        for inner_step in range(args.sync_every):
            x = torch.randn(16, 6, generator=data)
            loss = nn.functional.mse_loss(model(x), x[:, :3].prod(1, keepdim=True))
            inner.zero_grad()
            loss.backward()
            inner.step()  # culprit
            total += 1
            diloco.maybe_sync(inner_step)  # culprit
    dist.all_reduce(loss.detach_())
    if rank == 0:
        print(f"mean loss {loss.item() / dist.get_world_size():.4f} after {total} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
