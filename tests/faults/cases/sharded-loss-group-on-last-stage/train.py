import torch
import torch.distributed as dist
import torch.nn as nn


class PipelineParallel:
    """Ranks 0-1 are the first stage of two replicas, ranks 2-3 the last."""

    def __init__(self, stages=2):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.replicas = world // stages
        self.stage = self.rank // self.replicas
        self.is_last = self.stage == stages - 1
        self.peer = self.rank - self.replicas if self.is_last else self.rank + self.replicas
        self.stage_groups = [
            dist.new_group(list(range(s * self.replicas, (s + 1) * self.replicas))) for s in range(stages)
        ]
        self.loss_group = None
        if self.is_last:
            self.loss_group = dist.new_group(list(range(world - self.replicas, world)))  # culprit
        self.checkpoint_group = dist.new_group(list(range(world)), backend="gloo")

    @property
    def stage_group(self):
        return self.stage_groups[self.stage]


def step(pipe, module, x):
    if pipe.is_last:
        h = torch.empty(len(x), 12)
        dist.recv(h, src=pipe.peer)
        h.requires_grad_()
        loss = nn.functional.mse_loss(module(h), x)
        loss.backward()
        dist.send(h.grad, dst=pipe.peer)
        shown = loss.detach().clone()
        dist.all_reduce(shown, group=pipe.loss_group)
        return shown.item() / pipe.replicas
    h = module(x)
    dist.send(h.detach(), dst=pipe.peer)
    grad = torch.empty_like(h)
    dist.recv(grad, src=pipe.peer)
    h.backward(grad)
    return None


def main():
    dist.init_process_group("gloo")
    pipe = PipelineParallel()
    torch.manual_seed(pipe.stage)
    module = nn.Linear(12, 5) if pipe.is_last else nn.Sequential(nn.Linear(5, 12), nn.ReLU())
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(pipe.rank % pipe.replicas)
    for number in range(10):
        optimizer.zero_grad()
        loss = step(pipe, module, torch.randn(6, 5, generator=data))
        for p in module.parameters():
            dist.all_reduce(p.grad, group=pipe.stage_group)
            p.grad /= pipe.replicas
        optimizer.step()
        if loss is not None and pipe.rank == 2:
            print(f"{number} {loss:.4f}", flush=True)
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, module.state_dict(), group=pipe.checkpoint_group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
