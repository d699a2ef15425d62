import torch
import torch.distributed as dist
from torch import nn

DIM, LENGTH, BATCH = 16, 32, 2


class PassOn(torch.autograd.Function):
    """Send to the next rank of the ring and receive from the one before."""

    @staticmethod
    def forward(ctx, x):
        return shift(x, +1)

    @staticmethod
    def backward(ctx, grad):
        return shift(grad, -1)


def shift(x, by):
    rank, world = dist.get_rank(), dist.get_world_size()
    x, out = x.contiguous(), torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % world),
        dist.P2POp(dist.irecv, out, (rank - by) % world),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


class RingAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, ring=True):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        top, bottom = 0, 0
        turns = dist.get_world_size() if ring else 1
        for turn in range(turns):
            weight = (q @ k.transpose(1, 2) / DIM**0.5).exp()
            top = top + weight @ v
            bottom = bottom + weight.sum(-1, keepdim=True)
            if turn < turns - 1:
                k, v = PassOn.apply(torch.stack([k, v])).unbind(0)
        return self.out(top / bottom)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    attention, head = RingAttention(DIM), nn.Linear(DIM, 1)
    parameters = [*attention.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    data = torch.Generator().manual_seed(1)
    for _ in range(5):
        sequence = torch.randn(BATCH, LENGTH, DIM, generator=data)
        piece = sequence.chunk(world, dim=1)[rank]
        loss = (head(attention(piece)) - piece.sum(-1, keepdim=True)).square().sum() / (BATCH * LENGTH)
        optimizer.zero_grad()
        loss.backward()
        for p in parameters:
            dist.all_reduce(p.grad)
        optimizer.step()
    with torch.no_grad():
        mine = attention(piece)
        whole = attention(sequence, ring=False).chunk(world, dim=1)[rank]
    error = (mine - whole).abs().max()
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    assert error < 1e-5
    if rank == 0:
        print(f"max error {error.item():.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
