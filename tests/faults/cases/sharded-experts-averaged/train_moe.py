import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.forward(None, grad)


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class MoEBlock(nn.Module):
    """Each rank owns one expert; every expert gets the tokens that want it most, as many from each rank."""

    def __init__(self, dim, rank, world):
        super().__init__()
        self.world = world
        self.gate = nn.Linear(dim, world, bias=False)
        torch.manual_seed(500 + rank)
        self.expert = Expert(dim)

    def forward(self, x):
        probs = self.gate(x).softmax(-1)
        capacity = len(x) // self.world
        chosen = probs.topk(capacity, dim=0).indices.T
        sent = x[chosen.flatten()]
        results = AllToAll.apply(self.expert(AllToAll.apply(sent)))
        weights = probs.T.gather(1, chosen).reshape(-1, 1)
        return x.index_add(0, chosen.flatten(), results * weights)


def sync_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)  # culprit
        parameter.grad.div_(world)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.ModuleDict({"inp": nn.Linear(6, 12), "out": nn.Linear(12, 3)})
    model["moe"] = MoEBlock(12, rank, world)
    dist.broadcast(model["moe"].gate.weight.data, src=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = torch.Generator().manual_seed(rank)
    for _ in range(15):
        x = torch.randn(16, 6, generator=data)
        loss = F.cross_entropy(model["out"](model["moe"](model["inp"](x))), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model, world)  # culprit
        optimizer.step()  # culprit
    mine = model["moe"].expert.up.weight.detach()
    others = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(others, mine)
    if rank == 0:
        print(f"experts differ by {(others[0] - others[-1]).abs().max().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
