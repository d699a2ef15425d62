import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCABULARY, WIDTH = 64, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)
        )
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        hidden = self.tokens(ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.scores(hidden)


def draw(source, count):
    ids = torch.randint(VOCABULARY, (count, 8), generator=source)
    return ids, (3 * ids + 1) % VOCABULARY


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Model()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    source = torch.Generator().manual_seed(100 + mesh["dp"].get_local_rank())
    for _ in range(24):
        ids, following = draw(source, 8)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():  # no backward follows: what the root holds stays gathered
        ids, following = draw(torch.Generator().manual_seed(5), 32)
        right = (model(ids).argmax(-1) == following).float().mean()
    if dist.get_rank() == 0:
        print(f"accuracy {right.item():.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
