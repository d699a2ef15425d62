import torch
import torch.distributed as dist
from torch import nn

DIM, BLOCK = 8, 4


def rotate(block):
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(block)
    sending = dist.isend(block.contiguous(), (rank + 1) % world)
    dist.recv(received, (rank - 1) % world)  # culprit
    sending.wait()  # culprit
    return received


class RingAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def forward(self, x):
        blocks = x.split(BLOCK)
        outputs = []
        for block in blocks:
            q, kv = self.q(block), torch.cat([self.k(block), self.v(block)], dim=1).detach()
            top, bottom = 0.0, 0.0
            for turn in range(dist.get_world_size()):
                k, v = kv.chunk(2, dim=1)
                weight = (q @ k.T / DIM**0.5).exp()
                top, bottom = top + weight @ v, bottom + weight.sum(1, keepdim=True)
                if turn < dist.get_world_size() - 1:
                    kv = rotate(kv)
            outputs.append(top / bottom)
        return torch.cat(outputs)


def piece_of(sequence):
    rank, world = dist.get_rank(), dist.get_world_size()
    length = -(-len(sequence) // (BLOCK * world)) * BLOCK
    piece = sequence[rank * length : (rank + 1) * length]
    return piece[: len(piece) // BLOCK * BLOCK]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    attention = RingAttention()
    optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(9)
    for step, length in enumerate([24, 48, 40, 24]):
        sequence = torch.randn(length, DIM, generator=generator)
        piece = piece_of(sequence)
        loss = (attention(piece) - piece).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in attention.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)  # culprit
        optimizer.step()
        print(dist.get_rank(), step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
