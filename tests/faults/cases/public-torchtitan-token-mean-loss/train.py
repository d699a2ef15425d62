import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, DIM, SEQ, IGNORE = 24, 16, 16, -100
ACCUM = 2


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(h)


def make_batch(gen, rank):
    seq = torch.randint(0, VOCAB, (2, SEQ + 1), generator=gen)
    tokens, labels = seq[:, :-1], seq[:, 1:].clone()
    for row in range(labels.size(0)):
        answer_len = int(torch.randint(1, SEQ, (1,), generator=gen))
        labels[row, : SEQ - answer_len] = IGNORE
    return tokens, labels


def cross_entropy_loss(pred, labels):
    return F.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1), ignore_index=IGNORE)  # culprit


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
    torch.manual_seed(0)
    model = LM()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)

    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(5):
        opt.zero_grad()
        running = torch.zeros(())
        for micro in range(ACCUM):
            tokens, labels = make_batch(gen, rank)
            loss = cross_entropy_loss(model(tokens), labels) / ACCUM  # culprit
            loss.backward()
            running += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0).full_tensor()
        opt.step()
        dist.all_reduce(running)
        if rank == 0:
            print(f"step {step} loss {running.item() / world:.5f} grad_norm {norm.item():.5f}", flush=True)

    weight = model.head.weight.full_tensor()
    if rank == 0:
        print(f"head norm {weight.norm().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
