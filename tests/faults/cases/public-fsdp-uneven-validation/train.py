import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from data import PackedDataset

VOCAB, DIM, SEQ = 32, 16, 24
STEPS, VAL_INTERVAL, ACCUM = 12, 4, 2


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.block = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM), nn.Tanh())
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens, labels):
        h = self.embed(tokens)
        logits = self.head(h + self.block(h))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def run_eval_loop(model, rank, world):
    model.eval()
    totals = torch.zeros(2)
    for tokens, labels in PackedDataset(41, SEQ, VOCAB, rank, world, seed=2, epochs=1):  # culprit
        totals[0] += model(tokens, labels)
        totals[1] += 1
    dist.all_reduce(totals)
    model.train()
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
    torch.manual_seed(0)
    model = LM()
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

    train_iter = iter(PackedDataset(200, SEQ, VOCAB, rank, world, seed=1))
    for step in range(STEPS):
        if (step + 1) % VAL_INTERVAL == 0:
            val_loss = run_eval_loop(model, rank, world)
            if rank == 0:
                print(f"step {step} val_loss {val_loss:.4f}", flush=True)
        opt.zero_grad()
        for _ in range(ACCUM):
            tokens, labels = next(train_iter)
            loss = model(tokens, labels) / ACCUM
            loss.backward()
        opt.step()
        print(f"rank {rank} step {step} loss {loss.item() * ACCUM:.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
