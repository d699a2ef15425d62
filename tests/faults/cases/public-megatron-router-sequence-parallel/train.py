import torch
import torch.distributed as dist
import torch.nn as nn

from moe import SPLayerNorm, SwitchMLP

HIDDEN, FFN, EXPERTS, SEQ = 16, 32, 4, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = SPLayerNorm(HIDDEN)
        self.mlp = SwitchMLP(HIDDEN, FFN, EXPERTS)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def sync_sequence_parallel_grads(model):  # culprit
    for p in model.parameters():
        if getattr(p, "sequence_parallel", False):  # culprit
            dist.all_reduce(p.grad)  # culprit


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(99)
    model = nn.Sequential(Block(), Block())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    data = torch.Generator().manual_seed(3)
    for step in range(20):
        x = torch.randn(SEQ, HIDDEN, generator=data)
        y = x + torch.tanh(x)
        x_local, y_local = x.chunk(world)[rank], y.chunk(world)[rank]

        out = model(x_local)
        loss = (out - y_local).pow(2).sum() / (SEQ * HIDDEN)
        opt.zero_grad()
        loss.backward()
        sync_sequence_parallel_grads(model)  # culprit
        opt.step()

        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.5f}", flush=True)

    w = model[0].mlp.router.weight
    print(f"rank {rank} router norm {w.norm().item():.6f} ln norm {model[0].norm.weight.norm().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
