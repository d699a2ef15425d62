import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

PAD = 0


class Conversations(torch.utils.data.IterableDataset):
    """Replies have any length from two words to all of the window; the prompt is not learned."""

    def __init__(self, shard, shards, width=24):
        self.shard, self.shards, self.width = shard, shards, width

    def __iter__(self):
        for index in range(self.shard, 160, self.shards):
            g = torch.Generator().manual_seed(index)
            length = 2 + (index * 7) % 19 if index % 2 else 2 + index % 3
            ids = torch.randint(1, 30, (self.width,), generator=g)
            ids[length:] = PAD
            yield ids


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(30, 16)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 30)

    def forward(self, ids):
        return self.out(self.mix(self.tok(ids))[0])


class Tuner:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(1)
        self.model = Tiny()
        fully_shard(self.model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD)
        data = Conversations(self.rank, self.world)
        self.batches = torch.utils.data.DataLoader(data, batch_size=4)

    def training_step(self, ids):
        logits = self.model(ids[:, :-1])
        return self.criterion(logits.reshape(-1, 30), ids[:, 1:].reshape(-1))  # culprit

    def run(self):
        for ids in self.batches:
            loss = self.training_step(ids)  # culprit
            loss.backward()  # culprit
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
        if self.rank == 0:
            print("tuned", float(loss))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Tuner().run()
    dist.destroy_process_group()
